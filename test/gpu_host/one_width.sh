#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that no file compiled by nvcc contains GEMMs of the CPU, which graft::cpu_compiled has: nvcc's have another
# packet width, the linker keeps either, and one would read past the end of what the other one packed.
# usage: one_width.sh FOLDER-OF-OBJECTS      fails with the symbols that should not be there
set -eu
objects=$(find "$1" -name '*.cu.o')
[ -n "$objects" ] || { echo "no objects of nvcc below $1"; exit 1; }
found=0
for object in $objects; do
  products=$(nm -C "$object" | grep -E ' [WVu] .*(Eigen::internal::ge|graft::cpu::(gemm|packed_gemm|row_products)<)' || true)
  if [ -n "$products" ]; then
    printf '%s\n' "$products" | cut -c 1-160
    echo "in $object"
    found=1
  fi
done
exit $found
