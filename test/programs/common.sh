# SPDX-License-Identifier: Apache-2.0
# Functions that the scripts of this folder share. Sourced with a folder for files; $work is a new folder in it, which
# is removed at the end.
work=$(mktemp -d "$1/programs.XXXXXX")
clean() { rm -rf "$work"; }
trap clean EXIT
base=test/golden/models/llama/base
wrong() { printf '%s\n' "$*"; exit 1; }
# says WORDS COMMAND...: the command must fail and print the words.
says() {
  words=$1
  shift
  if printed=$("$@" 2>&1); then wrong "succeeded: $*"; fi
  case $printed in *"$words"*) ;; *) wrong "expected '$words' from $*, got: $printed" ;; esac
}
# equal EXPECTED GOT WHAT
equal() { [ "$1" = "$2" ] || wrong "$3: expected '$1', got '$2'"; }
# wait_for WHAT TEST...: until the test succeeds.
wait_for() {
  what=$1
  shift
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || wrong "waited in vain for $what"
    sleep 0.1
  done
}
# model_copy FOLDER: copies the files of the base model to a folder, to be replaced one by one.
model_copy() {
  mkdir "$1"
  for file in config.json generation_config.json model.safetensors; do cp "$base/$file" "$1/$file"; done
  chmod u+w "$1"/*
}
