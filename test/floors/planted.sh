#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests check.sh: it must find each line marked "planted" below planted/graft, and nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/planted/graft"
wanted=$(grep -rn '// planted' . | sed 's,^\./,,' | cut -d: -f1,2 | LC_ALL=C sort)
if found=$(sh "$here/check.sh" .); then
  echo "check.sh accepted a tree with offences"
  exit 1
fi
found=$(printf '%s\n' "$found" | cut -d: -f1,2 | LC_ALL=C sort)
[ "$found" = "$wanted" ] && exit 0
printf 'planted:\n%s\nfound:\n%s\n' "$wanted" "$found"
exit 1
