#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate on a GGUF file; generate --chat: one question, a conversation read from the input, what it forgets, stop
# strings, output that is UTF-8, and what is refused. convert_adapter and merge_model on GGUF files, finetune on
# conversations.
#     generate_chat.sh FOLDER GENERATE FINETUNE CONVERT_ADAPTER MERGE_MODEL
set -eu
. test/programs/common.sh
generate=$2 finetune=$3 convert=$4 merge=$5
has() { case $1 in *"$2"*) ;; *) wrong "expected '$2' in: $1" ;; esac; }

# A model with a tokenizer of bytes and a chat template.
model_copy "$work/chat"
cp test/programs/bytes_tokenizer.json "$work/chat/tokenizer.json"
cat >"$work/chat/chat_template.jinja" <<'END'
{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}
END
chat() { "$generate" "$work/chat" --chat --max-new-tokens 12 "$@"; }

one=$(chat 'hi')
equal "$one" "$(printf 'hi\n' | chat)" 'a question of the input'
printf 'hi\nand you\n' | chat >"$work/two"
printf 'hi\n/reset\nand you\n' | chat >"$work/reset"
equal "$(printf 'hi\n\n\n/exit\nnever' | chat)" "$one" 'empty lines and /exit'
equal "$(chat 'and you'; printf .)" "$(tail -c +$(($(chat hi | wc -c) + 1)) "$work/reset"; printf .)" 'a question after /reset'
[ "$(cat "$work/two")" != "$(cat "$work/reset")" ] || wrong 'a conversation forgets what was said'
[ "$one" != "$(chat hi --system 'be brief')" ] || wrong 'a system message changes nothing'
[ "$one" != "$(chat hi --seed 1 --temperature 9 --top-k 0)" ] || wrong 'a seed changes nothing'
equal "$one" "$(chat hi --seed 1 --min-p 1)" 'min-p 1 leaves the most likely token'
[ "$one" != "$(chat hi --repetition-penalty 50)" ] || wrong 'a repetition penalty changes nothing'
chat hi | iconv -f UTF-8 -t UTF-8 >/dev/null || wrong 'an answer is not UTF-8'
for seed in 1 2 3 4; do
  chat hi --seed $seed --temperature 9 --top-k 0 --max-new-tokens 40 | iconv -f UTF-8 -t UTF-8 >/dev/null || wrong 'not UTF-8'
done
# A text ends before a stop string: the third character of the answer.
text=$("$generate" "$work/chat" hi --max-new-tokens 12 | sed -n 1p)
stop=$(printf '%s' "${text#the model:}" | LC_ALL=C.UTF-8 awk '{ print substr($0, 3, 2) }')
if [ -n "$stop" ]; then
  stopped=$("$generate" "$work/chat" hi --max-new-tokens 12 --stop "$stop" | sed -n 1p)
  case ${stopped#the model:} in *"$stop"*) wrong "the stop string '$stop' is in '$stopped'" ;; esac
  has "$text" "$stopped"
fi
has "$(chat hi --stats 2>&1)" ' tokens per second; at most '

has "$(chat hi --max-new-tokens 0 --stats 2>&1)" 'then 0.0 tokens per second'

says '--chat takes text, not --ids' "$generate" "$work/chat" --chat --ids 5
says '--system is a message of a conversation' "$generate" "$work/chat" hi --system x
says '--stop ends a text, and --ids makes none' "$generate" "$work/chat" --ids 5 --stop x
says 'expected TEXT' "$generate" "$work/chat" --chat --compare-base
says 'there is no chat template' sh -c "rm '$work/chat/chat_template.jinja'; '$generate' '$work/chat' --chat hi"

gguf=test/golden/gguf/llama_mixed
"$generate" $gguf/model.gguf --ids 3,10,17 --max-new-tokens 4 --adapter $gguf/adapter >/dev/null
says "'tokenizer.ggml.model'" "$generate" $gguf/model.gguf text
says 'nothing.gguf: there is no such file' "$generate" nothing.gguf --ids 1

# The adapter as a GGUF file and back, and merged.
"$convert" $gguf/model.gguf $gguf/adapter "$work/adapter.gguf" >/dev/null
"$convert" $gguf/model.gguf "$work/adapter.gguf" "$work/peft" >/dev/null
answer() { "$generate" "$1" --ids 3,10,17 --max-new-tokens 8 --adapter "$2" | sed -n 1p; }
equal "$(answer $gguf/model.gguf $gguf/adapter)" "$(answer $gguf/model.gguf "$work/adapter.gguf")" 'the adapter as GGUF'
equal "$(answer $gguf/model.gguf $gguf/adapter)" "$(answer $gguf/model.gguf "$work/peft")" 'the adapter as PEFT'
"$merge" $gguf/model.gguf $gguf/adapter "$work/merged.gguf" f32 >/dev/null
has "$("$merge" $gguf/model.gguf "$work/adapter.gguf" "$work/q8.gguf" q8_0)" 'tensors written to'
merged=$("$generate" "$work/merged.gguf" --ids 3,10,17 --max-new-tokens 8 | sed -n 1p)
equal "$(answer $gguf/model.gguf $gguf/adapter | sed 's/with the adapter/the model/')" "$merged" 'the merged model'
says "AS is quantized or one of f32, f16, bf16, q8_0" "$merge" $gguf/model.gguf $gguf/adapter "$work/x.gguf" q3_k
says 'is written as one: name OUT.gguf' "$merge" $gguf/model.gguf $gguf/adapter "$work/x"
says 'tokenizer.json: there is no such file' "$merge" "$base" test/golden/models/llama/lora/adapter_init "$work/x.gguf"
says 'GGUF adapters hold' "$convert" "$base" test/golden/models/llama/dora/adapter_init "$work/x.gguf"
[ ! -e "$work/x.gguf" ] || wrong 'a refused file was left'

# Conversations to train on.
model_copy "$work/talk"
cp test/programs/bytes_tokenizer.json "$work/talk/tokenizer.json"
echo '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}' >"$work/talk/chat_template.jinja"
turn='{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]}'
printf '%s\n\n%s\n' "$turn" "$turn" >"$work/two.jsonl"
"$finetune" "$work/talk" "$work/two.jsonl" "$work/trained" --steps 2 --targets q_proj >/dev/null
says 'two.jsonl, line 1: the conversation has 21 tokens; ask for a --max-length of as many' \
  "$finetune" "$work/talk" "$work/two.jsonl" "$work/y" --max-length 8
echo '{"prompt": "a"}' >"$work/bad.jsonl"
says "bad.jsonl, line 1: there is no key 'messages'" "$finetune" "$work/talk" "$work/bad.jsonl" "$work/y"
says 'there are no conversations' sh -c "echo >'$work/none.jsonl'; '$finetune' '$work/talk' '$work/none.jsonl' '$work/y'"
