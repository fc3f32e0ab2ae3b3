#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two clients of a server at a Unix socket get the answers that the requests get from a file. A server replaces the
# socket of a killed server, and nothing else.
#     serve_socket.sh FOLDER SERVER
set -eu
. test/programs/common.sh
server=$2
socket=$work/socket
models=test/golden/models/llama
set -- "$models/base" --ids --max-new-tokens 8 sql=$models/multi/a chat=$models/multi/c oft=$models/oft/adapter_init \
  scaled=$models/ia3/adapter_init
running=
trap '[ -z "$running" ] || kill $running; clean' EXIT
start() {
  "$server" "$@" --socket "$socket" &
  running=$!
}
answers() { "$server" --client "$socket" </dev/null 2>/dev/null; }

echo mine >"$work/file"
says 'is there and is no socket' "$server" "$@" --socket "$work/file"
equal mine "$(cat "$work/file")" 'a file that is no socket'

expected=$("$server" "$@" --input examples/requests.txt)
[ -n "$expected" ] || wrong 'no answers'
start "$@"
wait_for 'the server' answers
for client in first second; do
  equal "$expected" "$("$server" --client "$socket" <examples/requests.txt)" "the $client client"
done
says 'a server runs at' "$server" "$@" --socket "$socket"
equal "$expected" "$("$server" --client "$socket" <examples/requests.txt)" 'after another server was refused'

kill -9 $running
wait $running || true
[ -S "$socket" ] || wrong 'a killed server leaves its socket'
start "$@"
wait_for 'the server in the place of the killed one' answers
kill $running
wait $running || true
running=
[ ! -e "$socket" ] || wrong 'a server that ends removes its socket'
