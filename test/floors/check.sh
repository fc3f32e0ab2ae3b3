#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the order of the floors: an include goes to the same floor or down, never up; umbrella headers are on top.
# In backend/gpu, arch includes nothing else of the backend, and tile only arch.
# Floors 0 to 4 must also stay light and usable in device code: no Eigen, no CUDA, no container, no stream.
# usage: check.sh INCLUDE/graft        prints FILE:LINE: REASON for each offence and fails if there is one
set -eu
cd "$1"
find . -type f \( -name '*.h' -o -name '*.cuh' \) | sed 's,^\./,,' | LC_ALL=C sort | xargs awk '
  BEGIN {
    n = split("core graph adapter derive plan backend run parallel model io", name, " ")
    for (i = 1; i <= n; i++) level[name[i]] = i - 1
    level["block"] = level["derive"]  # formulas of blocks, on the floor of the derivations
    umbrella = n
    level["bench"] = umbrella  # measures what the umbrellas offer
    m = split("bit compare concepts cstddef cstdint cstdio initializer_list limits type_traits utility", word, " ")
    for (i = 1; i <= m; i++) light[word[i]] = 1
  }
  function floor_of(path,    part) {
    if (split(path, part, "/") == 1) return umbrella
    return part[1] in level ? level[part[1]] : -1
  }
  # Within the GPU backend, tile is built from arch alone, and arch from nothing.
  function above_tile(from, to) {
    if (to !~ /^backend\/gpu\//) return 0
    if (from ~ /^backend\/gpu\/arch\//) return to !~ /^backend\/gpu\/arch\//
    return from ~ /^backend\/gpu\/tile\// && to !~ /^backend\/gpu\/(arch|tile)\//
  }
  function offence(reason) { printf "%s:%d: %s\n", FILENAME, FNR, reason; bad = 1 }
  FNR == 1 {
    here = floor_of(FILENAME)
    # graft.h is the umbrella of floors 0 to 4 and as light as they are.
    low = here <= 4 || FILENAME == "graft.h"
    if (here < 0) offence("not on any floor")
  }
  /^[ \t]*#[ \t]*include[ \t]*"/ { offence("write #include <graft/...>, which reads the same from everywhere") }
  /^[ \t]*#[ \t]*include[ \t]*</ {
    what = $0
    sub(/^[^<]*</, "", what)
    sub(/>.*/, "", what)
    if (what ~ /^graft\//) {
      sub(/^graft\//, "", what)
      there = floor_of(what)
      if (there < 0) offence("<graft/" what "> is not on any floor")
      else if (there > here) offence("<graft/" what "> is on a higher floor")
      else if (FILENAME == "graft.h" && there > 4) offence("<graft/" what "> is above floor 4")
      else if (above_tile(FILENAME, what)) offence("<graft/" what "> is above backend/gpu/arch and backend/gpu/tile")
    } else if (low && !(what in light) && !(what == "memory" && FILENAME == "core/result.h")) {
      offence("<" what "> is not for floors 0 to 4")
    }
  }
  END { exit bad }
'
