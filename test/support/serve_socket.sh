#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two clients of a server at a Unix socket get the answers that the same requests get from a file.
#     serve_socket.sh SERVER FOLDER
set -eu
server=$1
socket=$2/serve_socket.$$
models=test/golden/models/llama
set -- "$models/base" --tokens 8 sql=$models/multi/a chat=$models/multi/c turned=$models/oft/adapter_init \
  scaled=$models/ia3/adapter_init
expected=$("$server" "$@" --from examples/requests.txt)
[ -n "$expected" ]
"$server" "$@" --socket "$socket" &
running=$!
trap 'kill $running; rm -f "$socket"' EXIT
tries=0
until [ -S "$socket" ]; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] || { echo "the server opened no socket"; exit 1; }
  sleep 0.1
done
for client in first second; do
  got=$("$server" --ask "$socket" < examples/requests.txt)
  if [ "$got" != "$expected" ]; then
    printf 'the %s client got\n%s\nexpected\n%s\n' $client "$got" "$expected"
    exit 1
  fi
done
