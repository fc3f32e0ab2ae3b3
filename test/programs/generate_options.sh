#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate: --context allows a context longer than 4096; temperature 0 gives the most likely token; invalid numbers are
# refused with the name of the option.
#     generate_options.sh FOLDER GENERATE
set -eu
. test/programs/common.sh
generate=$2
tokens() { "$generate" "$@" --ids 5,9,200 --max-new-tokens 6 | sed -n 1p; }

greedy=$(tokens "$base")
equal "$greedy" "$(tokens "$base" --seed 3 --temperature 0)" 'temperature 0'
[ "$greedy" != "$(tokens "$base" --seed 3 --temperature 50 --top-k 0)" ] || wrong 'a high temperature changes nothing'
says 'temperature is -1, expected' "$generate" "$base" --ids 5 --temperature -1
says '--temperature takes a number' "$generate" "$base" --ids 5 --temperature nan
says 'top_p is 7, expected' "$generate" "$base" --ids 5 --seed 1 --top-p 7
says 'there is no prompt' "$generate" "$base"
says 'there are two prompts' "$generate" "$base" text --ids 1
says '--ids takes token ids' "$generate" "$base" text

says 'more than the 256 positions of the model; ask for 256 or fewer' "$generate" "$base" --ids 5 --context 257
printed=$("$generate" "$base" --ids 5,9,200 --max-new-tokens 30 --context 8 2>&1)
case $printed in
  *'all 8 positions are full; a larger --context has more, up to the 256'*) ;;
  *) wrong "a full context prints: $printed" ;;
esac
model_copy "$work/long"
sed 's/"max_position_embeddings": 256/"max_position_embeddings": 8192/' "$base/config.json" >"$work/long/config.json"
prompt=$(seq 4100 | awk '{ printf "%s%d", (NR > 1 ? "," : ""), $1 % 200 }')
says 'has 4100 tokens, and the capacity is 4096; a larger --context has more, up to the 8192' \
  "$generate" "$work/long" --ids "$prompt"
printed=$("$generate" "$work/long" --ids "$prompt" --max-new-tokens 2 --context 4200) || wrong 'a context of 4200 fails'
case $printed in *'2 tokens, '*) ;; *) wrong "a context of 4200 prints: $printed" ;; esac
