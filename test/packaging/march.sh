#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A project that links graft::cpu without -march gets one line about it, once; a project with -march gets none.
# usage: march.sh SOURCE BINARY CMAKE [FLAG...]
set -eu
source=$1 binary=$2
shift 2
said() {
  rm -rf "$binary"
  "$@" -S "$source" -B "$binary" >"$binary.log" || {
    cat "$binary.log"
    exit 1
  }
  grep -c 'graft: layer links graft::cpu without -march: ' "$binary.log" || true
}
expect() {
  wanted=$1
  shift
  found=$(said "$@")
  [ "$found" -eq "$wanted" ] || {
    cat "$binary.log"
    echo "march.sh: said $found times, not $wanted: $*"
    exit 1
  }
}
mkdir -p "$(dirname "$binary")"
expect 1 "$@"
expect 0 "$@" -DCMAKE_CXX_FLAGS=-march=native
expect 0 "$@" -DGRAFT_SAY_MARCH=OFF
