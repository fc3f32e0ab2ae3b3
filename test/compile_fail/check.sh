#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that a mistake gives one short error with the expected text. A compile-fail file
#   - compiles as it is (the control: nothing but the mistake is wrong with it),
#   - fails with -DGRAFT_SHOULD_FAIL, with exactly one error and at most 15 lines of output,
#   - and its output matches every line `// expected: REGEX` of the file (extended regular expressions).
# `// expected-gcc: REGEX` (clang, nvcc) applies to one compiler only; `// lines: N` allows another length.
# usage: check.sh gcc|clang|nvcc FILE COMPILER [FLAG...]
set -eu
kind=$1 file=$2
shift 2
# Messages of the compilers in English, without line breaks for a terminal.
export LC_ALL=C

# nvcc has no -fsyntax-only, and it checks device code only when it compiles it.
compile() {
  if [ "$kind" = nvcc ]; then
    "$@" -std=c++20 -x cu -c -o /dev/null 2>&1
  else
    "$@" -std=c++20 -fsyntax-only 2>&1
  fi
}
reject() {
  echo "$file: $1"
  printf '%s\n' "$output"
  exit 1
}
asked() { sed -n "s,^// $1: *,,p" "$file"; }

output=
expected=$(asked expected && asked "expected-$kind")
[ -n "$expected" ] || reject "has no line '// expected: REGEX'"
most=$(asked lines)

output=$(compile "$@" "$file") || reject "the control does not compile"
if output=$(compile "$@" -DGRAFT_SHOULD_FAIL "$file"); then reject "the mistake compiles"; fi

# Every compiler here writes "error: " after the location, g++ also "fatal error: "; its own summary has no colon.
errors=$(printf '%s\n' "$output" | grep -Ec '(^|[ :])error: ' || true)
lines=$(printf '%s\n' "$output" | wc -l | tr -d ' ')
[ "$errors" -eq 1 ] || reject "$errors errors instead of one"
[ "$lines" -le "${most:-15}" ] || reject "$lines lines of output, at most ${most:-15} are wanted"
printf '%s\n' "$expected" | while IFS= read -r regex; do
  printf '%s\n' "$output" | grep -Eq -- "$regex" || reject "no line of the output matches: $regex"
done
