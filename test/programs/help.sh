#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every program explains itself with --help, and a misspelled option suggests the nearest one and --help.
#     help.sh FOLDER PROGRAM...
set -eu
. test/programs/common.sh
shift
for program; do
  name=$(basename "$program")
  printed=$("$program" --help) || wrong "$name --help fails"
  case $printed in "usage: $name"*--help*) ;; *) wrong "$name --help prints: $printed" ;; esac
  code=0
  printed=$("$program" --hel 2>&1) || code=$?
  equal 2 $code "the exit code of $name --hel"
  case $printed in
    *"there is no option --hel; did you mean '--help'?"*"$name --help lists all options"*) ;;
    *) wrong "$name --hel prints: $printed" ;;
  esac
done
