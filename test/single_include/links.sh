#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The sources in the Compiler Explorer links compile with the single header and nothing else, and run.
# usage: links.sh ROOT PYTHON COMPILER...
set -eu
root=$1 python=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sources"
# The site would fetch this address; here the include finds a copy of the header in a folder of that name.
header=https://example.org/graft.hpp
mkdir -p "$work/include/https:/example.org"
cp "$root/single_include/graft.hpp" "$work/include/https:/example.org/"
"$python" "$root/cmake/compiler_explorer.py" "$header" --decode "$work/sources"
longest=$("$python" "$root/cmake/compiler_explorer.py" "$header" | awk '{ if (length > n) n = length } END { print n }')
# A server refuses a request line of more than 8 KiB.
[ "$longest" -lt 8000 ] || { echo "a link has $longest characters" && exit 1; }
count=0
for source in "$work"/sources/*.cpp; do
  for compiler; do
    "$compiler" -std=c++20 -O0 "-I$work/include" "$source" -o "$work/program"
    "$work/program" >"$work/printed"
    grep -q 'forward on cpu: ' "$work/printed"
  done
  count=$((count + 1))
done
[ "$count" -ge 2 ]
echo "$count sources compile and run; the longest link has $longest characters"
