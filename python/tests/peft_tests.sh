#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PEFT's own tests, of the installed version, on graft's kernels:
#     PYTHON=python3 python/tests/peft_tests.sh [--without-graft] FILE... [PYTEST-OPTION...]
#     python/tests/peft_tests.sh test_decoder_models.py -k Llama
# They come with PEFT's source package, which pip downloads into build-python; the tiny models that they would download
# are made from configurations (offline_models.py). Beside graft_torch they need diffusers, datasets, scikit-learn,
# scipy, parameterized and PyWavelets.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
plugin=accelerate_peft
if [ "${1:-}" = --without-graft ]; then plugin= && shift; fi
if [ $# -eq 0 ]; then sed -n '3,8s/^# *//p' "$0" >&2 && exit 2; fi
version=$("$python" -c 'import peft; print(peft.__version__)')
folder=$here/../../build-python/peft-$version
if [ ! -d "$folder/tests" ]; then
  mkdir -p "$folder"
  "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$folder" "peft==$version"
  tar -xzf "$folder/peft-$version.tar.gz" -C "$folder" --strip-components 1
  : >"$folder/tests/__init__.py" # the source package leaves it out, and the tests import their neighbours
fi
cd "$folder/tests"
file=$1
shift
PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m pytest -q -p no:cacheprovider -p offline_models ${plugin:+-p $plugin} \
  "$file" "$@"
