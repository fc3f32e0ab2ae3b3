#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every libFuzzer program of a build folder, one after the other, from the golden files and what earlier runs
# found (BUILD/corpus). An input that crashes, is not handled, takes ten seconds or 512 MiB is left in BUILD/findings,
# and its reader's program reproduces it: libfuzzer_READER FILE.
# usage: libfuzzer.sh BUILD SECONDS [READER...]
set -eu
build=$1 seconds=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
golden=$root/test/golden
[ $# -gt 0 ] || set -- json safetensors adapter_config pattern gguf tokenizer chat_template http_body
mkdir -p "$build/findings"
seeds() {
  case $1 in
    json | adapter_config) find "$golden/layers" -name adapter_config.json ;;
    safetensors) find "$golden/layers" -name '*.safetensors' ;;
    gguf) find "$golden" -name '*.gguf' -size -64k ;;
    tokenizer) find "$golden/tokenizers" -name tokenizer.json ;;
    http_body | pattern | chat_template) find "$root/test/fuzz/seeds/$1" -type f ;;
  esac
}
bad=0
for reader; do
  corpus=$build/corpus/$reader
  mkdir -p "$corpus"
  seeds "$reader" | while IFS= read -r file; do
    cp "$file" "$corpus/seed-$(cksum <"$file" | tr ' ' -)"
  done
  printf '%s: ' "$reader"
  if "$build/test/fuzz/libfuzzer_$reader" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -max_len=65536 -print_final_stats=1 -artifact_prefix="$build/findings/$reader-" "$corpus" >"$build/$reader.log" 2>&1
  then
    echo "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$reader.log") executions," \
      "$(find "$corpus" -type f | wc -l) inputs in the corpus"
  else
    bad=1
    echo 'FAILED'
    tail -n 60 "$build/$reader.log"
  fi
done
exit $bad
