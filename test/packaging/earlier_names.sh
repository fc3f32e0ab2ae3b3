#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The earlier names of the part for GPUs still compile, and CMake and the compiler say which names to use.
# usage: earlier_names.sh ROOT WORK COMPILER CMAKE...     CMAKE...: the command and its options
set -eu
root=$1 work=$2 compiler=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
"$@" -S "$root/test/packaging/earlier_names" -B "$work" "-DGRAFT_SOURCE=$root" "-DCMAKE_CXX_COMPILER=$compiler" >"$work/said" 2>&1 &&
  cmake=$1 && "$cmake" --build "$work" >>"$work/said" 2>&1 || { cat "$work/said" && exit 1; }
for text in 'graft::cuda is now graft::gpu' 'use graft/gpu.h and graft::gpu'; do
  grep -q "$text" "$work/said" || { cat "$work/said" && echo "nothing says '$text'" && exit 1; }
done
echo 'both warn'
