#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The pages of the site can be laid out: every link leads to a file, and Doxygen finds the words of every public header.
# What needs packages from PyPI, the strict build and the search, is checked by ./run docs.
# usage: pages.sh ROOT PYTHON
set -eu
root=$1 python=$2
git -C "$root" rev-parse >/dev/null 2>&1 || { echo 'skipped: this is no git repository' && exit 77; }
for tool in doxygen dot; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed (Debian, Ubuntu: doxygen graphviz)" && exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$root/docs/site/stage.py" "$work/pages"
"$python" "$root/docs/site/api.py" "$work/pages/api" "$work/doxygen"
grep -q '<svg' "$work/pages/docs/concepts.md"
grep -q 'merged_weights(const names& which' "$work/pages/api/model-causal_lm.h.md"
