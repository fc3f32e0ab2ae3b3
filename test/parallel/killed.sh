#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# killed.sh PROGRAM MODEL OUT TIMES MPIRUN...: kills one of two training ranks TIMES times, each time at another moment
# of another step; the other rank must report it, and training must continue from the last checkpoint.
set -u
program=$1 model=$2 out=$3 times=$4
shift 4
round=0
while [ "$round" -lt "$times" ]; do
  rm -rf "$out"
  step=$(((round * 37 + 11) % 41)) microseconds=$(((round * 7919 + 1231) % 30000)) victim=$((round % 2))
  killed="rank $victim was killed $microseconds microseconds after step $step"
  said=$(timeout 120 "$@" -n 2 "$program" train "$model" "$out" "$step" "$microseconds" "$victim" 2>&1 |
    grep -c 'told after.*waited')
  if [ "$said" -ne 1 ]; then
    echo "$killed, and $said others said so" >&2
    exit 1
  fi
  if ! step=$("$program" check "$model" "$out"); then
    echo "$killed, and the checkpoint is broken" >&2
    exit 1
  fi
  round=$((round + 1))
  echo "$round: $killed; went on with step $step"
done
rm -rf "$out"
