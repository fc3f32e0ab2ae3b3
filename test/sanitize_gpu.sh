#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer over the small tests of the GPU: memory, memory that was never written, barriers, races in shared
# memory. The four tools run side by side. initcheck does not see what copy engines write, so it looks at the kernels
# without them: those in float, and attention by mma.sync.
# usage: sanitize_gpu.sh BUILD [CASES [SECONDS]]      one line for each tool; fails if one finds something
set -u
build=$1 cases=${2:-gpu small*} seconds=${3:-80}
logs=$build/sanitize_gpu
mkdir -p "$logs"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "there is no compute-sanitizer: install the CUDA Toolkit"; exit 1; }
for tool in memcheck initcheck synccheck racecheck; do
  (
    options= which=$cases
    case $tool in
      initcheck) which='gpu small in float*,gpu small by mma.sync*' ;;
      synccheck) options='--num-cuda-barriers 1024' ;;  # with 8192 it finds no memory and tracks nothing
    esac
    # shellcheck disable=SC2086  # a list of words
    timeout "$seconds" "$sanitizer" --tool "$tool" $options --print-limit 20 --error-exitcode 9 "$build/test/test_gpu" \
      -tc="$which" >"$logs/$tool.log" 2>&1
    echo $? >"$logs/$tool.rc"
  ) &
done
wait
failed=0
for tool in memcheck initcheck synccheck racecheck; do
  rc=$(cat "$logs/$tool.rc")
  case $rc in
    0) said=clean ;;
    9) said='found something' ;;
    124) said="did not end within $seconds s" ;;
    *) said="failed with $rc" ;;
  esac
  [ "$rc" = 0 ] || failed=1
  printf '%-10s %s: %s; %s\n' "$tool" "$said" "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$tool.log" | tail -1)" \
    "$(grep 'test cases:' "$logs/$tool.log" | tail -1)"
done
exit $failed
