#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that an object file of nvcc has the GEMM kernels that the layer type in it selects and no others, and no
# kernels of other launches than the type has: a kernel that no plan launches costs every program that names the type.
# Kernels are found by the stubs that launch them.
# usage: names.sh OBJECT EXPECTED      EXPECTED: the program of expected.cpp. Prints the names that differ
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -C "$1" | sed -n 's/.*guard variable for __device_stub__\(_\{0,1\}Z[A-Za-z0-9_]*\)(.*/\1/p' | sed 's/^Z/_Z/' | c++filt |
  sed -n 's/^void graft::gpu::\(.*[>a-z]\)(.*)$/\1/p' | sort -u >"$work/compiled"
[ -s "$work/compiled" ] || { echo "no kernels in $1"; exit 1; }
# The diagonal form of wgrad (1) belongs to an operation, the gradient of a rotation.
grep -E "^(gemm|skinny|wgrad|quantized|shrink)_[a-z_]*<" "$work/compiled" | grep -v "wgrad_form)1" >"$work/gemms"
"$2" >"$work/stated"
grep -v "^without " "$work/stated" | sort -u >"$work/expected"
sed -n "s/^without //p" "$work/stated" >"$work/without"
failed=0
while read -r name; do
  if grep -w "$name" "$work/compiled" >"$work/found"; then
    sed "s/^/compiled, and no plan of the type launches it: /" "$work/found"
    failed=1
  fi
done <"$work/without"
echo "$(wc -l <"$work/compiled") kernels in $1, of which $(wc -l <"$work/gemms") multiply matrices with the weight"
diff "$work/expected" "$work/gemms" >"$work/differ" && exit $failed
sed -n 's/^> /compiled, and no plan of the type launches it: /p; s/^< /selected, and not compiled: /p' "$work/differ"
exit 1
