#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Requests of serve_multi_lora: each line gets one answer of one line; prompts are text unless --ids is given; end
# tokens of the folder end an answer; the answer to an invalid request is its error.
#     serve_requests.sh FOLDER SERVER
set -eu
. test/programs/common.sh
server=$2
adapter=sql=test/golden/models/llama/multi/a
ask() { "$server" "$@" 2>/dev/null; }

got=$(printf -- '- 5,9,200\n\nsql\nnobody 1\n- 1,x\n- 999\n- -1\nsql 5,9,200' | ask "$base" --ids --max-new-tokens 4 $adapter)
equal 8 "$(printf '%s\n' "$got" | wc -l | tr -d ' ')" 'the number of answers'
answer() { printf '%s\n' "$got" | sed -n "$1p"; }
case $(answer 1) in *,*,*,*) ;; *) wrong "the base answers $(answer 1)" ;; esac
for expected in "2:the request is empty" "3:there is no prompt" "4:there is no adapter 'nobody'" \
  "5:'x' is no whole number; with --ids" "6:token 999 is none of this model" "7:token -1 is none of this model"; do
  case $(answer "${expected%%:*}") in
    "error: ${expected#*:}"*) ;;
    *) wrong "expected ${expected#*:}, got $(answer "${expected%%:*}")" ;;
  esac
done
first=$(answer 1)

# An end token of generation_config.json.
model_copy "$work/ends"
second=$(echo "$first" | cut -d, -f2)
printf '{"eos_token_id": [%s]}' "$second" >"$work/ends/generation_config.json"
equal "$(echo "$first" | cut -d, -f1,2)" "$(echo '- 5,9,200' | ask "$work/ends" --ids --max-new-tokens 4)" 'an end token'

# Text: 42 is two letters, and a new line in an answer is written as \n.
says 'with --ids prompts are token ids' "$server" "$base" --input examples/requests.txt
model_copy "$work/text"
printf '{}' >"$work/text/tokenizer.json"
says 'tokenizer.json' "$server" "$work/text" --input examples/requests.txt
cp test/programs/bytes_tokenizer.json "$work/text/tokenizer.json"
got=$(printf -- '- 42\n- 4\\\\2\n- 42' | ask "$work/text" --max-new-tokens 3)
equal 3 "$(printf '%s\n' "$got" | wc -l | tr -d ' ')" 'the number of answers in text'
equal "$(answer 1)" "$(answer 3)" 'the same prompt'
[ "$(answer 1)" != "$(answer 2)" ] || wrong 'an escaped backslash is part of the prompt'
case $(answer 1) in '\n'*) ;; *) wrong "expected an answer that begins with \\n, got $(answer 1)" ;; esac
got=$(printf -- '- \377' | ask "$work/text")
case $got in 'error: the text is not UTF-8'*) ;; *) wrong "expected an error of the tokenizer, got $got" ;; esac
