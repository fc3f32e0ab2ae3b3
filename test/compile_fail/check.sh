#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A mistake must be one short error that says the right thing. A compile-fail file
#   - compiles as it is (the control: nothing but the mistake is wrong with it),
#   - fails with -DGRAFT_SHOULD_FAIL, with exactly one error and at most 15 lines of output,
#   - and that output matches every line `// expected: REGEX` of the file (extended regular expressions).
# `// expected-gcc: REGEX` (clang, nvcc) asks it of one compiler only; `// lines: N` allows another length.
# usage: check.sh gcc|clang|nvcc FILE COMPILER [FLAG...]
set -eu
kind=$1 file=$2
shift 2
# The compilers' words in English, in lines that are not broken for a terminal.
export LC_ALL=C

# nvcc has no -fsyntax-only, and the code of a device is only looked at when it is compiled.
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

# Every compiler here writes "error: " behind the place, g++ also "fatal error: "; its own summary has no colon.
errors=$(printf '%s\n' "$output" | grep -Ec '(^|[ :])error: ' || true)
lines=$(printf '%s\n' "$output" | wc -l | tr -d ' ')
[ "$errors" -eq 1 ] || reject "$errors errors instead of one"
[ "$lines" -le "${most:-15}" ] || reject "$lines lines of output, at most ${most:-15} are wanted"
printf '%s\n' "$expected" | while IFS= read -r regex; do
  printf '%s\n' "$output" | grep -Eq -- "$regex" || reject "no line of the output matches: $regex"
done
