#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Adapters of test/golden/models/llama as llama.cpp's converter writes them (convert_lora_to_gguf.py of the sources in
# llama-cpp-python 0.3.36; needs torch and transformers).
#     make.sh LLAMA_CPP_SOURCES
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for name in lora_embedding lora_qv; do
  PYTHONPATH=$1/gguf-py python3 "$1/convert_lora_to_gguf.py" --base "$here/../models/llama/base" \
    --outfile "$here/$name.gguf" "$here/../models/llama/$name/adapter_init"
done
