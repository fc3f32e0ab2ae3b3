#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# stopped.sh PROGRAM TIMES MPIRUN...: kills one of three ranks at another step each time; both others must report it.
set -u
program=$1 times=$2
shift 2
round=0
while [ "$round" -lt "$times" ]; do
  step=$((round * 7 % 11))
  said=$(timeout 60 "$@" -n 3 "$program" "$step" 2>&1 | grep -c 'waited 2 s for the others')
  if [ "$said" -ne 2 ]; then
    echo "a rank was killed at step $step, and $said of the 2 others noticed" >&2
    exit 1
  fi
  round=$((round + 1))
done
