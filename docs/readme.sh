#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the programs of a page compile; those for the GPU are left out, nvcc compiles examples/gpu_layer.cu
# instead. A block without an include is an adapter: it becomes the DoRA of a layer.
# usage: readme.sh PAGE LEAST COMPILER [FLAG...]           LEAST: the minimum number of programs of the page
set -eu
page=$1 least=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v work="$work" '/^```cpp$/ { n++; inside = 1; next } /^```$/ { inside = 0 } inside { print > (work "/" n ".txt") }' "$page"
compiled=0
for block in "$work"/*.txt; do
  program=${block%.txt}.cpp
  if grep -q '<graft/gpu.h>' "$block"; then continue; fi
  if grep -q '^#include' "$block"; then
    cp "$block" "$program"
  else
    {
      printf '#include <graft/graft.h>\nnamespace shown {\n'
      cat "$block"
      printf '}\nstruct q_proj : graft::linear<64, 32, float, shown::dora<4>> {};\n'
      printf 'static_assert(graft::compile<q_proj, graft::fullgraph, graft::training>::kernels == 1);\n'
    } >"$program"
  fi
  "$@" -std=c++20 -fsyntax-only "$program"
  compiled=$((compiled + 1))
done
echo "$compiled programs of $page compile"
[ "$compiled" -ge "$least" ]
