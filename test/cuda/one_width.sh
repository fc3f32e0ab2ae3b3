#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No file compiled by nvcc has products of the CPU in it where graft::cpu_compiled has them: nvcc's are of another width
# of packets, the linker takes either, and what one has packed the other reads past its end.
# usage: one_width.sh FOLDER-OF-OBJECTS      fails with the symbols that should not be there
set -eu
objects=$(find "$1" -name '*.cu.o')
[ -n "$objects" ] || { echo "no objects of nvcc below $1"; exit 1; }
found=0
for object in $objects; do
  products=$(nm -C "$object" | grep -E ' [WVu] .*(Eigen::internal::ge|graft::cpu::(gemm|packed_product|mixed_products)<)' || true)
  if [ -n "$products" ]; then
    printf '%s\n' "$products" | cut -c 1-160
    echo "in $object"
    found=1
  fi
done
exit $found
