#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One fine-tuning that SIGKILL ends at random moments, also while it saves, and that resumes each time from what it
# left: in the end its losses and its adapter have the bits of a run that was never stopped.
#     finetune_soak.sh FOLDER FINETUNE KILLS [SEED]
set -eu
. test/programs/common.sh
finetune=$2 kills=$3 seed=${4:-${GRAFT_SEED:-1}}
running=
trap '[ -z "$running" ] || kill -9 $running; clean' EXIT
out=$work/killed
train() {
  "$finetune" "$base" examples/tokens.ids "$@" --max-length 24 --lr-scheduler constant --warmup-steps 0
}
steps_done() { if [ -f "$out/loss.csv" ]; then echo $(($(wc -l <"$out/loss.csv") - 1)); else echo 0; fi; }

# Milliseconds until each kill, from the seed.
moments=$(awk -v seed="$seed" -v n="$kills" 'BEGIN { srand(seed); for (i = 0; i < n; i++) print int(rand() * 1500) }')
resumed=0
for moment in $moments; do
  if [ -f "$out/optimizer.safetensors" ]; then set -- --resume "$out"; else set --; fi
  "$finetune" "$base" examples/tokens.ids "$out" "$@" --max-length 24 --lr-scheduler constant --warmup-steps 0 --steps 1000000 \
    --save-every 1 --overwrite >"$work/printed" 2>&1 &
  running=$!
  sleep "$((moment / 1000)).$(printf '%03d' $((moment % 1000)))"
  kill -KILL $running 2>/dev/null || wrong "it ended by itself (seed $seed): $(cat "$work/printed")"
  wait $running && code=0 || code=$?
  running=
  equal 137 $code "the exit code of a killed run"
  [ $# -eq 0 ] || resumed=$((resumed + 1))
done
[ "$(steps_done)" -gt 0 ] || wrong "no run came as far as a step"
steps=$(($(steps_done) + 2))
train "$out" --resume "$out" --steps $steps >/dev/null
train "$out.whole" --steps $steps >/dev/null
cmp "$out/loss.csv" "$out.whole/loss.csv" || wrong "seed $seed: the losses are not those of a run that was never stopped"
cmp "$out/adapter_model.safetensors" "$out.whole/adapter_model.safetensors" || wrong "seed $seed: the adapter differs"
echo "$kills kills, $resumed runs resumed, $steps steps, the same bits (seed $seed)"
