#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the single header alone, twice in one file, under every warning, and prints the processor time that each
# compiler takes for it; a second copy of the library in one program is an error that says so.
# usage: alone.sh ROOT COMPILER...
set -eu
root=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include <graft.hpp>\n#include <graft.hpp>\n' >"$work/alone.cpp"
printf '#include <graft/graft.h>\n#include <graft.hpp>\n' >"$work/both.cpp"
for compiler; do
  for standard in c++20 c++2b; do
    (
      "$compiler" "-std=$standard" -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror \
        "-I$root/single_include" "$work/alone.cpp" || exit 1
      times >"$work/times"  # of this shell, and of the compiler
    )
    echo "$compiler -std=$standard: $(sed -n '2s/ .*//p' "$work/times") of processor time"
  done
  if "$compiler" -std=c++20 -fsyntax-only "-I$root/include" "-I$root/single_include" "$work/both.cpp" 2>"$work/said"; then
    echo "$compiler takes two copies of the library in one program"
    exit 1
  fi
  grep -q 'are the same library: include only one of them' "$work/said"
done
