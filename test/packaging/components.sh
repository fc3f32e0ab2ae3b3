#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The three components of the install are all of it, have no file in common, and the headers alone compile nothing else.
# usage: components.sh CMAKE BUILD PREFIX WORK       PREFIX: an install of everything
set -eu
cmake=$1 build=$2 prefix=$3 work=$4
rm -rf "$work"
mkdir -p "$work"
for component in graft_headers graft_cmake graft_pkgconfig; do
  "$cmake" --install "$build" --prefix "$work/$component" --component $component >/dev/null
  (cd "$work/$component" && find . -type f) >>"$work/parts"
done
(cd "$prefix" && find . -type f) | LC_ALL=C sort >"$work/whole"
LC_ALL=C sort "$work/parts" | diff "$work/whole" -
if (cd "$work/graft_headers" && find . -type f) | grep -v -e '^\./include/graft/' -e '^\./share/licenses/graft/LICENSE$'; then
  echo 'these files are no headers'
  exit 1
fi
