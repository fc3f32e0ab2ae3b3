#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A fine-tuning that SIGTERM or SIGINT ends has saved everything, one that is killed has its last checkpoint, and each
# resumes to the bits and losses of a run that was never stopped.
#     finetune_stopped.sh FOLDER FINETUNE
set -eu
. test/programs/common.sh
finetune=$2
running=
trap '[ -z "$running" ] || kill -9 $running; clean' EXIT
train() { "$finetune" "$base" examples/tokens.ids "$@" --max-length 24 --lr-scheduler constant --warmup-steps 0; }

for signal in TERM INT KILL; do
  out=$work/$signal
  "$finetune" "$base" examples/tokens.ids "$out" --max-length 24 --lr-scheduler constant --warmup-steps 0 --steps 1000000 --save-every 3 \
    >"$work/printed" &
  running=$!
  wait_for 'the first save' test -f "$out/optimizer.safetensors"
  kill -$signal $running
  wait $running && code=0 || code=$?
  running=
  if [ $signal != KILL ]; then
    equal 0 $code "the exit code after $signal"
    grep -q 'stopped; everything is in' "$work/printed" || wrong "after $signal: $(cat "$work/printed")"
  fi
  done=$(($(wc -l <"$out/loss.csv") - 1))
  [ $done -ge 3 ] || wrong "loss.csv has $done steps"
  steps=$((done + 4))
  train "$out" --resume "$out" --steps $steps >/dev/null
  train "$out.whole" --steps $steps >/dev/null
  cmp "$out/loss.csv" "$out.whole/loss.csv" || wrong "$signal: the losses are not those of a run that was never stopped"
  cmp "$out/adapter_model.safetensors" "$out.whole/adapter_model.safetensors" || wrong "$signal: the adapter differs"
done
