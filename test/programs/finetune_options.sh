#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# finetune: its options reach the adapter and the training, existing files stay unless --overwrite is given, errors name
# the option and the cure, and a quantized model is trained like any other.
#     finetune_options.sh FOLDER FINETUNE GENERATE
set -eu
. test/programs/common.sh
finetune=$2 generate=$3
data=examples/tokens.ids
train() { "$finetune" "$@" >/dev/null; }
has() { grep -q "$2" "$1" || wrong "expected $2 in $1: $(cat "$1")"; }

# --accumulate and --evaluate are earlier names of --gradient-accumulation-steps and --eval-fraction.
train "$base" $data "$work/a" --steps 6 --max-length 24 --method dora --rank 4 --alpha 12 --targets q_proj,v_proj \
  --accumulate 2 --seed 3 --eval-fraction 0.25 --save-every 2 --set lora_dropout=0.1
config=$work/a/adapter_config.json
has "$config" "\"base_model_name_or_path\": \"$base\""
has "$config" '"r": 4'
has "$config" '"lora_alpha": 12'
has "$config" '"use_dora": true'
has "$config" '"lora_dropout": 0.1'
has "$config" '"v_proj"'
if grep -q k_proj "$config"; then wrong 'a module that was not named is adapted'; fi
equal 7 "$(wc -l <"$work/a/loss.csv" | tr -d ' ')" 'the lines of loss.csv'
equal 3 "$(grep -c '^[246],[0-9.]*,[0-9.][0-9.]*$' "$work/a/loss.csv")" 'the steps that were evaluated'
for words in '>step<' '>loss<' '<line' '<polyline' '>evaluation<'; do has "$work/a/loss.svg" "$words"; done

# The same options give the same bits, another seed gives others.
train "$base" $data "$work/b" --steps 2 --max-length 24 --seed 3
train "$base" $data "$work/c" --steps 2 --max-length 24 --seed 3
train "$base" $data "$work/d" --steps 2 --max-length 24 --seed 4
cmp "$work/b/adapter_model.safetensors" "$work/c/adapter_model.safetensors" || wrong 'the same seed gives other bits'
if cmp -s "$work/b/loss.csv" "$work/d/loss.csv"; then wrong 'another seed gives the same losses'; fi

# Existing results stay without --overwrite; other files of the folder stay in any case.
echo mine >"$work/b/notes"
says 'is there already; name another one, go on with --resume' "$finetune" "$base" $data "$work/b" --steps 2
cmp "$work/b/adapter_model.safetensors" "$work/c/adapter_model.safetensors" || wrong 'a refused run changed the adapter'
train "$base" $data "$work/b" --overwrite --steps 2 --max-length 24 --seed 4
cmp "$work/b/loss.csv" "$work/d/loss.csv" || wrong 'losses of the run before it are left'
equal mine "$(cat "$work/b/notes")" 'another file of the folder'

says '--max-length 10000 is more than the 256 positions of the model; ask for 256 or fewer' \
  "$finetune" "$base" $data "$work/e" --max-length 10000
says '--rank: IA3 has no rank' "$finetune" "$base" $data "$work/e" --method ia3 --rank 4 --set feedforward_modules='["down_proj"]'
says '--method nothing: ' "$finetune" "$base" $data "$work/e" --method nothing
says '--lr-scheduler takes constant, linear or cosine' "$finetune" "$base" $data "$work/e" --lr-scheduler flat
says 'leave out --method, --rank' "$finetune" "$base" $data "$work/e" --resume "$work/b" --rank 4
says 'has made 2 steps; ask for more' "$finetune" "$base" $data "$work/b" --resume "$work/b" --steps 2
says "did you mean '--steps'" "$finetune" "$base" $data "$work/e" --step 3
echo 5 999 >"$work/bad.ids"
says 'token 999 is none of this model' "$finetune" "$base" "$work/bad.ids" "$work/e"
[ ! -e "$work/e" ] || wrong 'a refused run left a folder'

for method in oft loha vera adalora; do train "$base" $data "$work/$method" --steps 2 --max-length 24 --method $method; done

quantized=test/golden/quantized/models/llama_nf4_double/base
printed=$("$finetune" $quantized $data "$work/q" --steps 8 --max-length 24 --learning-rate 0.01)
case $printed in *'quantized weights in '*' bits each'*) ;; *) wrong "a quantized model prints: $printed" ;; esac
awk -F, 'NR == 2 { first = $2 } { last = $2 } END { exit !(last < first) }' "$work/q/loss.csv" || wrong 'the loss did not fall'
"$generate" $quantized --adapter "$work/q" --ids 3,10,17 --max-new-tokens 4 >/dev/null
