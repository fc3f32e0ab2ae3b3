#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer over the small tests of the GPU: memory, memory that was never written, barriers, races in shared
# memory. Three tools run side by side. initcheck does not see what copy engines write, so it looks at the kernels
# without them: those in float, and attention by mma.sync. synccheck keeps memory for every launch of a process and says
# "didn't track the launch" where it finds none: it runs behind the others, a process for each case.
# usage: sanitize_gpu.sh BUILD [CASES [SECONDS]]      one line for each tool; fails if one finds something
set -u
build=$1 cases=${2:-gpu small*} seconds=${3:-80}
logs=$build/sanitize_gpu
mkdir -p "$logs"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "there is no compute-sanitizer: install the CUDA Toolkit"; exit 1; }

# check TOOL CASES LOG OPTION...: its exit status goes beside the log
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

check memcheck "$cases" memcheck &
check racecheck "$cases" racecheck &
check initcheck 'gpu small in float*,gpu small by mma.sync*' initcheck &
wait
for tool in memcheck initcheck racecheck; do say $tool $tool; done
"$build/test/test_gpu" -tc="$cases" --list-test-cases --no-intro=true | grep '^gpu' >"$logs/cases"
number=0  # a comma would begin another pattern
while read -r case; do
  number=$((number + 1))
  check synccheck "${case%%,*}*" "synccheck-$number" --num-cuda-barriers 1024 </dev/null
  say "synccheck-$number" synccheck
done <"$logs/cases"
exit $failed
