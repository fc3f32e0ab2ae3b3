#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests check.sh: it must accept selftest/good.cpp and reject every other file there for the reason
# that the file states in its line `// rejected: TEXT`.
# usage: selftest.sh gcc|clang|nvcc COMPILER [FLAG...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kind=$1
shift
status=0
sh "$here/check.sh" "$kind" "$here/selftest/good.cpp" "$@" || status=1
for file in "$here"/selftest/*.cpp; do
  reason=$(sed -n 's,^// rejected: ,,p' "$file")
  [ -n "$reason" ] || continue
  if said=$(sh "$here/check.sh" "$kind" "$file" "$@"); then
    echo "$file: accepted"
    status=1
  elif ! printf '%s\n' "$said" | head -n 1 | grep -qF -- "$reason"; then
    printf '%s: not turned down for "%s" but:\n%s\n' "$file" "$reason" "$said"
    status=1
  fi
done
exit $status
