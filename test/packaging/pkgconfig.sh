#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Programs compile and run with the flags that pkg-config gives, also from an install that was moved.
# usage: pkgconfig.sh PREFIX CONSUMER VERSION COMPILER
set -eu
prefix=$1 consumer=$2 version=$3 compiler=$4
command -v pkg-config >/dev/null || { echo 'skipped: pkg-config is not installed' && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$prefix" "$work/moved"
PKG_CONFIG_PATH=$work/moved/share/pkgconfig
export PKG_CONFIG_PATH
flags() { pkg-config --cflags --libs "$1"; }
[ "$(pkg-config --modversion graft)" = "$version" ]
# shellcheck disable=SC2046  # a list of flags
"$compiler" -std=c++20 "$consumer" $(flags graft) -o "$work/consumer"
[ "$("$work/consumer")" = "graft $version" ]
[ -f "$work/moved/share/pkgconfig/graft-cpu.pc" ] || exit 0
pkg-config --exists eigen3 || { echo 'graft-cpu is left out: there is no eigen3.pc' && exit 0; }
printf '#include <graft/cpu.h>\nstruct q_proj : graft::linear<8, 8, float, graft::lora<2>> {};\n%s\n' \
  'graft::status f(graft::cpu::layer<q_proj>& q) { return q.set("scaling", 2.0); }' >"$work/layer.cpp"
# shellcheck disable=SC2046
"$compiler" -std=c++20 -fsyntax-only $(flags graft-cpu) -DGRAFT_CPU_COMPILED "$work/layer.cpp"
