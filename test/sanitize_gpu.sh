#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer's four tools over the small tests of the GPU: memcheck, initcheck (uninitialized memory), synccheck
# (barriers) and racecheck (shared memory). initcheck does not see what TMA writes, so it runs the kernels without TMA:
# those in float, and attention by mma.sync. racecheck and synccheck allocate memory for every launch of a process and
# slow down as it grows, so each case has its own process. synccheck runs one process at a time, because several exhaust
# the memory for barriers.
# usage: sanitize_gpu.sh BUILD [CASES [SECONDS]]      prints one line per tool; fails if one finds something
set -u
build=$1 cases=${2:-gpu small*} seconds=${3:-80}
logs=$build/sanitize_gpu
mkdir -p "$logs"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "there is no compute-sanitizer: install the CUDA Toolkit"; exit 1; }

# check TOOL CASES LOG OPTION...: runs the tool; its exit status is stored next to the log
check() {
  tool=$1 which=$2 log=$3
  shift 3
  timeout "$seconds" "$sanitizer" --tool "$tool" "$@" --print-limit 20 --error-exitcode 9 "$build/test/test_gpu" \
    -tc="$which" >"$logs/$log.log" 2>&1
  echo $? >"$logs/$log.rc"
}
failed=0
# say LOG NAME
say() {
  rc=$(cat "$logs/$1.rc")
  case $rc in
    0) said=clean ;;
    9) said='found something' ;;
    124) said="did not end within $seconds s" ;;
    *) said="failed with $rc" ;;
  esac
  [ "$rc" = 0 ] || failed=1
  printf '%-10s %s: %s; %s\n' "$2" "$said" "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$1.log" | tail -1)" \
    "$(grep 'test cases:' "$logs/$1.log" | tail -1)"
}

"$build/test/test_gpu" -tc="$cases" --list-test-cases --no-intro=true | grep '^gpu' >"$logs/cases"
check memcheck "$cases" memcheck &
check initcheck 'gpu small in float*,gpu small by mma.sync*' initcheck &
wait
for tool in memcheck initcheck; do say $tool $tool; done
# each_case TOOL OPTION...: three processes at a time for racecheck, one for synccheck
each_case() {
  tool=$1 number=0  # a comma in the name of a case would begin another pattern
  shift
  while read -r case; do
    number=$((number + 1))
    check "$tool" "${case%%,*}*" "$tool-$number" "$@" </dev/null &
    if [ "$tool" = synccheck ] || [ $((number % 3)) = 0 ]; then wait; fi
  done <"$logs/cases"
  wait
  while [ "$number" -gt 0 ]; do say "$tool-$number" "$tool" && number=$((number - 1)); done
}
each_case racecheck
each_case synccheck --num-cuda-barriers 1024
exit $failed
