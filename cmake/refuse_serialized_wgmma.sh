#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler and fails if ptxas reports that it serialized wgmma instructions (C7510 to C7520), which is no warning
# and costs a GEMM most of its speed. C7519, an inserted arrive, costs nothing.
# usage: refuse_serialized_wgmma.sh COMMAND...
said=$(mktemp) || exit 1
"$@" >"$said" 2>&1
code=$?
cat "$said" >&2
if grep -qE '\(C75(1[0-8]|20)\)' "$said"; then
  echo "wgmma instructions are serialized: see the lines of ptxas above" >&2
  code=1
fi
rm -f "$said"
exit $code
