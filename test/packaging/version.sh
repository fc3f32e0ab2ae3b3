#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that states the version states the one of the header, and the presets are read by CMake.
# usage: version.sh ROOT VERSION CMAKE
set -eu
cd "$1"
version=$2
states() { # FILE LINE
  grep -qxF -- "$2" "$1" || { echo "$1 has no line: $2" && exit 1; }
}
states python/pyproject.toml "version = \"$version\""
states python/graft_torch/__init__.py "__version__ = \"$version\""
states CITATION.cff "version: $version"
states packaging/vcpkg/ports/graft/vcpkg.json "  \"version\": \"$version\","
grep -qF "GIT_TAG v$version" docs/how-to/use-in-cmake.md || { echo "use-in-cmake.md does not fetch v$version" && exit 1; }
"$3" --list-presets=all . | grep -q '"release"'
