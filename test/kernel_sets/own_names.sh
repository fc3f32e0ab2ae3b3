#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the objects of kernel sets define no function that another file may define too, but under names of their
# set: the linker would take one of them for both, and a processor without the instructions could reach it. They also
# must not run anything when a program starts.
#     own_names.sh OBJECT…
for object in "$@"; do
  names=$(nm -C --defined-only "$object") || exit 1
  echo "$names" | grep -q "graft_for_" || { echo "$object has no names of a set"; exit 1; }
  shared=$(echo "$names" | grep " [WVu] " | grep -v "graft_for_\|Eigen_for_\|DW.ref.__gxx_personality")
  [ -z "$shared" ] || { echo "$object shares names with other files:"; echo "$shared"; exit 1; }
  if echo "$names" | grep "_GLOBAL__sub_I"; then echo "$object runs code at the start"; exit 1; fi
done
