#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks in the machine code of test/gpu/tile_pipeline.cu that a stage of a pipeline is released after it has been read
# (tile/pipeline.cuh): the arrival that releases it comes after the last product of the words that ldmatrix loaded, and
# after a wait for the group of wgmma products that read it. The two kernels that break the rule must be refused, so
# that this test fails if it cannot see the difference.
# usage: pipeline_order.sh CUOBJDUMP OBJECT      prints what is wrong; 77: the tool or the code for sm_90a is missing
set -eu
command -v "$1" >/dev/null || { echo "no cuobjdump: it comes with the CUDA Toolkit"; exit 77; }
code=$(mktemp)
trap 'rm -f "$code"' EXIT
"$1" -sass -arch sm_90a "$2" >"$code" 2>/dev/null || true
grep -q 'Function : registers_by_rule' "$code" || { echo "no code for sm_90a in $2"; exit 77; }

# order FUNCTION: prints "early" or "late" for the arrivals that release a stage, "none" where there is none. An arrival
# without bytes is SYNCS.ARRIVE….A1T0; the producer's, which expects bytes, has no A1T0.
order() {
  awk -v wanted="$1" '
    /Function : / { inside = $NF == wanted; next }
    !inside { next }
    / HGMMA/ { running = 1; products++ }
    / WARPGROUP.DEPBAR/ { running = 0 }
    / HMMA/ { products++; if (released) early = 1 }
    / SYNCS.ARRIVE.*A1T0/ { released++; if (running || !products) early = 1 }
    END { print !released ? "none" : early ? "early" : "late" }' "$code"
}
failed=0
for rule in registers_by_rule:late products_by_rule:late registers_too_early:early products_too_early:early; do
  kernel=${rule%:*} expected=${rule#*:}
  found=$(order "$kernel")
  [ "$found" = "$expected" ] || { echo "$kernel releases its stages $found; expected: $expected"; failed=1; }
done
exit $failed
