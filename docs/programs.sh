#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every page with a whole program, a block of C++ with an include, is among the pages whose programs are compiled. Blocks
# without an include are parts of programs, which blocks.py reads.
# usage: programs.sh ROOT PAGE...
set -eu
cd "$1"
shift
bad=0
for page in README.md $(find docs -name '*.md'); do
  awk '/^```cpp$/ { inside = 1; next } /^```$/ { inside = 0 } inside && /^#include/ { found = 1 } END { exit !found }' "$page" ||
    continue
  case " $* " in *" $page "*) ;; *) echo "$page has a program that no test compiles" && bad=1 ;; esac
done
exit $bad
