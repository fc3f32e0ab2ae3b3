#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `conan create` with the recipe and its test package, with and without the CPU backend. Eigen is the one of this
# machine, so nothing is fetched; Conan's files are in a folder of this test.
# usage: conan.sh ROOT WORK COMPILER
set -eu
root=$1 work=$2 compiler=$3
conan=${GRAFT_CONAN:-conan}
command -v "$conan" >/dev/null || { echo 'skipped: conan is not installed (PyPI has it)' && exit 77; }
"$conan" --version | grep -q ' 2\.' || { echo "skipped: the recipe is for Conan 2, and this is $("$conan" --version)" && exit 77; }
rm -rf "$work"
mkdir -p "$work"
CONAN_HOME=$work/home CXX=$compiler
export CONAN_HOME CXX
"$conan" profile detect >"$work/log" 2>&1
profile=$("$conan" profile path default)
printf '[platform_requires]\neigen/3.4.0\n' >>"$profile"
cp -R "$root/packaging/conan/test_package" "$work/test_package"  # Conan builds below the folder
for cpu in False True; do
  "$conan" create "$root/packaging/conan" --test-folder "$work/test_package" -o "&:cpu=$cpu" -s compiler.cppstd=20 \
    >>"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
  }
done
# The program prints what is derived for its layer.
[ "$(grep -c '^  unmerge ' "$work/log")" -eq 2 ]
