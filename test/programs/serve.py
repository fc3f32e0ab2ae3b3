# SPDX-License-Identifier: Apache-2.0
# The server over HTTP: answers, streams, errors, adapters that come and go, clients that misbehave, and its end.
#     python3 test/programs/serve.py FOLDER SERVE GENERATE
# Only Python's own library is needed; serve_openai.py has the tests with OpenAI's own client.
import concurrent.futures
import gzip
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import server_under_test
from server_under_test import equal, events, has, llama, model_with_words, post

folder, program, generate = sys.argv[1:4]
methods = ["lora", "dora", "oft", "ia3", "hra", "loha", "vera", "miss"]


def Server(model, *options, **how):
    return server_under_test.Server(program, work, model, *options, **how)


def answers(model):
    """Answers of a full batch are those of the program generate, which runs one sequence with one adapter."""
    named = [f"{m}={llama}/{m}/adapter_init" for m in methods]
    with Server(f"{llama}/base", "--max-loaded-adapters", "3", "--max-num-seqs", "6",
                "--max-num-batched-tokens", "16", *named) as s:
        prompts = [[3 + (31 * k + 7 * i) % 240 for i in range(1 + 5 * k % 40)] for k in range(4)]
        expected = {}
        for m in methods + [None]:
            for k, p in enumerate(prompts):
                adapter = ["--adapter", f"{llama}/{m}/adapter_init"] if m else []
                out = subprocess.run([generate, f"{llama}/base", *adapter, "--ids", ",".join(map(str, p)), "--tokens", "8"],
                                     capture_output=True, text=True, check=True).stdout
                expected[m, k] = out.splitlines()[0].split(":")[1].split()
        asked = [(m, k) for m in methods + [None] for k in range(len(prompts))] * 3

        def ask(which):
            name, k = which
            return s.text(model=name or "base", prompt=prompts[k], max_tokens=8).split(",")

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for which, got in zip(asked, pool.map(ask, asked)):
                equal(expected[which], got, f"the answer to {which}")
        names = [(m["id"], m["parent"]) for m in s.call("/v1/models")[1]["data"]]
        equal([("base", None)] + [(m, "base") for m in methods], names, "the models")
        equal(3, sum(a["in_memory"] for a in s.call("/lora-adapters")[1]), "adapters in memory")
        has("no tokenizer", s.call("/v1/completions", {"prompt": "x"})[1]["error"]["message"], "a text without a tokenizer")
        equal(0, s.end(), "the exit code after SIGTERM")


def completions(s):
    chat = {"model": "sql", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0.9, "seed": 5}
    status, whole = s.call("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2, "n": 2})
    equal(200, status, "a chat")
    equal(2, len(whole["choices"]), "its choices")
    equal(24, whole["usage"]["completion_tokens"], "its tokens")
    equal(12, len(whole["choices"][0]["logprobs"]["content"]), "its log probabilities")
    rendered = "[user] Hello\n[assistant] "
    equal(len(rendered), whole["usage"]["prompt_tokens"], "the rendered prompt")
    streamed = events(s.call("/v1/chat/completions", {**chat, "stream": True, "stream_options": {"include_usage": True}}, raw=True)[1])
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in streamed if c["choices"])
    equal(whole["choices"][0]["message"]["content"], text, "a stream with the same seed")
    equal(12, streamed[-1]["usage"]["completion_tokens"], "the usage of a stream")
    equal("length", streamed[-2]["choices"][0]["finish_reason"], "the end of a stream")
    parts = {**chat, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]}
    equal(whole["choices"][0]["message"]["content"], s.call("/v1/chat/completions", parts)[1]["choices"][0]["message"]["content"],
          "content in parts")
    ids = s.call("/tokenize", {"prompt": rendered})[1]["tokens"]
    equal(len(rendered), len(ids), "tokens")
    equal(rendered, s.call("/detokenize", {"tokens": ids})[1]["prompt"], "their text")
    several = s.call("/v1/completions", {"model": "sql", "prompt": [rendered, ids], "temperature": 0.9, "seed": 5, "max_tokens": 12})[1]
    equal(whole["choices"][0]["message"]["content"], several["choices"][0]["text"], "the first of two prompts")
    equal(several["choices"][0]["text"], several["choices"][1]["text"], "a prompt as text and as tokens")
    both = [s.text(model=m, prompt="Hello", max_tokens=24) for m in ("sql", "chat", "sql+chat", "base")]
    equal(4, len(set(both)), "different answers of different adapters")
    stop = s.call("/v1/completions", {"prompt": ids, "logit_bias": {"65": 100}, "max_tokens": 9, "stop": ["AAAA"]})[1]["choices"][0]
    equal(("", "stop"), (stop["text"], stop["finish_reason"]), "a stop string")
    forced = {"prompt": ids, "logit_bias": {"65": 100, "66": 90}, "max_tokens": 4, "temperature": 0}
    equal("AAAA", s.text(**forced), "a logit bias")
    equal("ABAA", s.text(**{**forced, "logit_bias": {"65": 100, "66": 99}}, frequency_penalty=2)[:1] + "BAA", "a frequency penalty")
    for seed in range(4):
        choice = s.call("/v1/completions", {"prompt": "{", "seed": seed, "max_tokens": 200, "temperature": 2,
                                            "response_format": {"type": "json_object"}})[1]["choices"][0]
        if choice["finish_reason"] == "stop":
            equal(dict, type(json.loads(choice["text"], strict=False)), "JSON mode")
        else:
            equal("{", choice["text"][:1], "the begin of JSON mode")


def errors(s):
    def refused(status, words, body, path="/v1/completions", headers=None):
        got, answer = s.call(path, body, headers)
        equal(status, got, f"the status of {str(body)[:60]}")
        has(words, answer["error"]["message"], f"the error of {str(body)[:60]}")

    for body, words in [(b"{", "the body"), (b"", "the body"), (b"[1]", "no JSON object"), (b"[" * 100000, "nested"),
                        (b'{"prompt": "\xff"}', "UTF-8"), (b'{"prompt": 5}', "no text and no list"), (b"{}", "prompt is missing"),
                        (b'{"prompt": "a", "prompt": "b"}', "prompt")]:
        refused(400, words, body)
    for change, words in [({"temprature": 1}, "did you mean 'temperature'"), ({"temperature": -1}, "temperature is -1"),
                          ({"temperature": "hot"}, "no number"), ({"top_p": 2}, "top_p is 2"), ({"max_tokens": 0}, "max_tokens is 0"),
                          ({"max_tokens": 100000}, "the context"), ({"max_tokens": 1e300}, "whole number"), ({"n": 0}, "n is"),
                          ({"n": 100000}, "n is"), ({"logprobs": 100}, "logprobs is 100"), ({"stop": [1]}, "no text"),
                          ({"echo": True}, "echo"), ({"response_format": {"type": "json_schema"}}, "json_object"),
                          ({"logit_bias": {"x": 1}}, "logit_bias"), ({"seed": -1}, "seed"), ({"prompt": [999]}, "no token"),
                          ({"prompt": []}, "no text and no list"), ({"prompt": "x" * 300}, "the context")]:
        refused(400, words, {"prompt": "x", **change})
    refused(404, "there is no adapter 'sqk'; did you mean 'sql'?", {"model": "sqk", "prompt": "x"})
    refused(404, "there is no adapter ''", {"model": "sql+", "prompt": "x"})
    refused(404, "named twice", {"model": "sql+sql", "prompt": "x"})
    refused(400, "no list of messages", {"messages": "x"}, "/v1/chat/completions")
    refused(400, "without a role", {"messages": [{}]}, "/v1/chat/completions")
    refused(404, "no such path", {}, "/v1/nothing")
    equal(413, s.call("/v1/completions", b"x" * (3 << 20))[0], "the status of a large body")
    # A hundred megabytes, with their length, in chunks, and as a small file that unpacks to them; memory does not grow.
    before = s.figure("resident_memory_bytes")
    large = {"Content-Length": ({}, [b" " * (1 << 20)] * 100),
             "chunks": ({"Transfer-Encoding": "chunked"}, [b"100000\r\n" + b" " * (1 << 20) + b"\r\n"] * 100 + [b"0\r\n\r\n"]),
             "gzip": ({"Content-Encoding": "gzip"}, [gzip.compress(b" " * (100 << 20), 1)])}
    for name, (headers, parts) in large.items():
        headers = {"Host": "x", **headers}
        if name != "chunks":
            headers["Content-Length"] = sum(map(len, parts))
        connection = s.open("".join([f"POST /v1/completions HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in headers.items()),
                                     "\r\n"]).encode())
        for part in parts:
            connection.sendall(part)
        status = connection.recv(12)
        equal(b"HTTP/1.1 413", status, f"the status of a body of 100 MB, {name}")
        connection.close()
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl -d says so unless it is told otherwise
    equal(200, s.call("/v1/completions", b" " * 50000 + b'{"prompt": "x"}', form)[0], "a body of more than 8 kB from curl -d")
    equal(400, s.call("/v1/completions", b"x", {"Content-Type": "multipart/form-data; boundary=x"})[0], "a form")
    grown = (s.figure("resident_memory_bytes") - before) / 2**20
    if grown > 50:
        raise AssertionError(f"bodies of 100 MB took {grown:.0f} MiB of memory")
    equal(400, s.call("/v1/completions", b'{"prompt": "' + b"x" * (1 << 20) + b'"}')[0], "the status of a long prompt")
    equal(200, s.call("/health")[0], "health after all of it")


def adapters(s):
    def load(name, path, status=200, **more):
        got, answer = s.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})
        equal(status, got, f"the status of loading {path}: {answer}")
        return answer

    prompt = {"prompt": "Hello", "max_tokens": 20}
    sql, chat = (s.text(model=m, **prompt) for m in ("sql", "chat"))
    load("mine", "a")
    equal(sql, s.text(model="mine", **prompt), "a loaded adapter")
    has("already", load("mine", "c", 400)["error"]["message"], "a name that is there")
    reused = s.figure("reused_tokens_total")
    load("mine", "c", load_inplace=True)
    equal(chat, s.text(model="mine", **prompt), "a replaced adapter")
    equal(reused, s.figure("reused_tokens_total"), "tokens of the version before it")
    for path in ("../base", "..", ".", "/etc", "a/../../base", "link", "a/adapter_model.safetensors\0", "nowhere", os.path.abspath(llama)):
        load("escaped", path, 403)
    has("adapter_config.json", load("broken", "broken", 400)["error"]["message"], "a broken folder")
    load("mine", "broken", 400, load_inplace=True)
    equal(chat, s.text(model="mine", **prompt), "the version before a broken one")
    equal(404, s.call("/v1/completions", {"model": "broken", "prompt": "x"})[0], "the name of a broken one")
    # It is unloaded while a request runs with it.
    stream = s.open(post("/v1/completions", {"model": "mine", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}))
    first = stream.recv(1000)
    equal(200, s.call("/v1/unload_lora_adapter", {"lora_name": "mine"})[0], "unloading")
    equal(404, s.call("/v1/completions", {"model": "mine", "prompt": "x"})[0], "an unloaded adapter")
    while b"[DONE]" not in first:
        part = stream.recv(65536)
        if not part:
            raise AssertionError("a request ended with the adapter that was unloaded")
        first += part
    stream.close()
    equal(404, s.call("/v1/unload_lora_adapter", {"lora_name": "mine"})[0], "unloading it again")


def usual_adapters(s):
    """llama-server's ways of naming adapters: `lora` in a request, and POST /lora-adapters for requests that name none."""
    prompt = {"prompt": "Hello", "max_tokens": 20}
    base, sql, both, turned = (s.text(model=m, **prompt) for m in ("base", "sql", "sql+chat", "chat+sql"))
    ids = {a["name"]: a["id"] for a in s.call("/lora-adapters")[1]}
    on = lambda *names: [{"id": ids[n], "scale": 1} for n in names]
    off = lambda *names: [{"id": ids[n], "scale": 0.0} for n in names]
    for expected, lora in ((base, []), (sql, on("sql")), (both, on("sql", "chat")), (turned, on("chat", "sql")),
                           (sql, on("sql") + off("chat"))):
        equal(expected, s.text(lora=lora, **prompt), f"the answer to lora {lora}")
    for lora, words in (([{"id": 0, "scale": 0.5}], "store it with another lora_alpha"), ([{"id": 99, "scale": 1}], "the id 99"),
                        (on("sql", "sql"), "twice"), ({}, "a list of adapters"), ([{"id": 0}], "expected an adapter"),
                        ([{"id": -1, "scale": 1}], "expected an adapter")):
        status, answer = s.call("/v1/completions", {"lora": lora, **prompt})
        equal(400, status, f"the status of lora {lora}")
        has(words, answer["error"]["message"], "its error")
        if lora != {}:
            equal(400, s.call("/lora-adapters", lora)[0], "its status as the usual ones")
    equal(400, s.call("/v1/completions", {"model": "sql", "lora": [], **prompt})[0], "adapters in model and in lora")
    equal((200, {"success": True}), s.call("/lora-adapters", on("sql", "chat")), "setting the usual adapters")
    equal({"sql": 1, "chat": 1}, {a["name"]: a["scale"] for a in s.call("/lora-adapters")[1]}, "their scales")
    status, answer = s.call("/v1/completions", {**prompt, "temperature": 0})
    equal((both, "sql+chat"), (answer["choices"][0]["text"], answer["model"]), "a request that names nothing")
    equal(base, s.text(model="base", **prompt), "one that names the base")
    equal(sql, s.text(model="sql", **prompt), "one that names an adapter")
    equal(200, s.call("/lora-adapters", [])[0], "setting none")
    equal(base, s.text(**prompt), "a request that names nothing, then")


def unloading_while_waiting(model):
    """A request that waits in the queue while its adapter is unloaded asks for an adapter that is not there."""
    with Server(model, f"sql={llama}/multi/a", f"chat={llama}/multi/c", "--adapter-folder", work + "/adapters", "--max-num-seqs", "1",
                "--max-waiting-seqs", "100000") as s:
        for stream in (False, True):
            equal(200, s.call("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "a"})[0], "loading")
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                running = s.open(post("/v1/completions", {"prompt": "x", "max_tokens": 200, "n": 2000, "ignore_eos": True, "stream": True}))
                running.recv(10)
                asked = s.figure("requests_total")
                late = pool.submit(s.call, "/v1/completions", {"model": "new", "prompt": "x", "priority": 5, "stream": stream})
                s.wait_for("requests_total", asked + 1)
                equal(200, s.call("/v1/unload_lora_adapter", {"lora_name": "new"})[0], "unloading")
                running.close()
                status, answer = late.result()
                equal((404, "model_not_found"), (status, answer["error"]["code"]), "a request whose adapter was unloaded")
        # Requests and unloading at the same time: nothing but an answer or a 404.
        statuses = set()
        for k in range(20):
            equal(200, s.call("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "a"})[0], "loading")
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                asked = [pool.submit(s.call, "/v1/completions", {"model": "new", "prompt": "x", "max_tokens": 2}) for _ in range(8)]
                unloaded = pool.submit(s.call, "/v1/unload_lora_adapter", {"lora_name": "new"})
                statuses |= {a.result()[0] for a in asked}
                equal(200, unloaded.result()[0], "unloading")
        equal(set(), statuses - {200, 404}, "the statuses of requests while their adapter is unloaded")


def vanished_in_the_queue(model):
    """Clients that are gone leave the queue while others run."""
    with Server(model, "--max-num-seqs", "1", "--max-waiting-seqs", "100000") as s:
        running = s.open(post("/v1/completions", {"prompt": "x", "max_tokens": 200, "n": 5000, "ignore_eos": True, "stream": True}))
        running.recv(10)
        waiting = [s.open(post("/v1/completions", {"prompt": "y", "priority": 5, "n": 500, "stream": stream}))
                   for stream in (False, True) * 3]
        for _ in range(1200):
            if s.figure("sequences_waiting") > 6000:
                break
            time.sleep(0.05)
        for connection in waiting:
            connection.close()
        s.wait_for('sequences_finished_total{reason="cancelled"}', 3000)
        equal(1, s.figure("sequences_running"), "the sequence that runs")
        equal(True, s.figure("sequences_waiting") > 2000, "the sequences that wait for it")
        running.close()


def stopped_log(model):
    """A reader of the log that stops does not stop the server."""
    read, write = os.pipe()
    with Server(model, log=os.fdopen(write, "w")) as s:
        for _ in range(2000):
            equal(404, s.call("/v1/nothing")[0], "a request that is logged")
            if s.figure("log_lines_lost_total") > 10:
                break
        else:
            raise AssertionError("a full pipe lost no line of the log")
        equal(1, len(s.text(prompt="Hello", max_tokens=1, logit_bias={"65": 100})), "an answer while nobody reads the log")
        equal(0, s.end(), "the exit code while nobody reads the log")
    lines = open(read, "rb").read().decode().splitlines()
    for line in lines[:-1]:
        if line.startswith("{"):
            json.loads(line)
    equal(True, len(lines) > 100, "lines that were read later")


def memory_limit(model):
    with Server(model, f"sql={llama}/multi/a", f"chat={llama}/multi/c", "--max-loaded-adapter-megabytes", "1") as s:
        sizes = [a["bytes"] for a in s.call("/lora-adapters")[1]]
        s.wait_for("adapter_bytes_in_memory", sum(sizes))  # the figures are those at the end of the last step
        equal(True, min(sizes) > 1000, "the bytes of one")
        has("serve: model in", "".join(s.lines), "the time that the model takes")


def disk_full(model):
    """A full disk leaves files that are cut off, and no room for the log."""
    folders = work + "/full"
    os.mkdir(folders)
    with Server(model, f"sql={llama}/multi/a", "--adapter-folder", folders) as s:
        prompt = {"prompt": "Hello", "max_tokens": 20}
        before = s.text(model="sql", **prompt)
        for k, (name, size) in enumerate((n, s) for n in ("adapter_model.safetensors", "adapter_config.json")
                                         for s in (0, 7, 100, os.path.getsize(f"{llama}/multi/c/{n}") - 1)):
            shutil.copytree(f"{llama}/multi/c", f"{folders}/{k}")
            os.truncate(f"{folders}/{k}/{name}", size)
            status, answer = s.call("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": str(k)})
            equal(400, status, f"the status of {name} cut off after {size} bytes")
            has(name, answer["error"]["message"], "its error")
            equal(404, s.call("/v1/completions", {"model": "new", "prompt": "x"})[0], "the name of what could not be loaded")
            equal(400, s.call("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": str(k), "load_inplace": True})[0],
                  "the status of a replacement that is cut off")
            equal(before, s.text(model="sql", **prompt), "the version before it")
        # A file is written again and again while it is loaded.
        shutil.copytree(f"{llama}/multi/a", f"{folders}/changes")
        with open(f"{llama}/multi/a/adapter_model.safetensors", "rb") as file:
            content = file.read()
        ended = threading.Event()

        def write():
            while not ended.wait(0.001):
                with open(f"{folders}/changes/adapter_model.safetensors", "wb") as file:
                    file.write(content[:2000])
                    file.flush()
                    file.write(content[2000:])

        writer = threading.Thread(target=write)
        writer.start()
        statuses = [s.call("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "changes", "load_inplace": True})[0]
                    for _ in range(100)]
        ended.set()
        writer.join()
        equal(set(), set(statuses) - {200, 400}, "the statuses of a file that changes")
        equal(200, s.call("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "changes", "load_inplace": True})[0],
              "the status when it does not change any more")
        equal(before, s.text(model="sql", **prompt), "the answer of what was loaded")
        equal(0, s.end(), "the exit code")
    limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    for log, before in ((open("/dev/full", "w"), None), (None, limited)):
        with Server(model, log=log, before=before) as s:
            for k in range(50):
                equal(1, len(s.text(prompt="Hello", max_tokens=1, logit_bias={"65": 100})), "an answer without room for the log")
            equal(0, s.end(), "the exit code")


def faults(s):
    long = {"model": "sql", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "n": 4}
    # Clients that vanish, at every stage. Some of their requests end before that is seen.
    for _ in range(5):
        for data in (b"", b"POST", post("/v1/completions", long)[:-5], post("/v1/completions", {**long, "stream": True}),
                     post("/v1/completions", long)):
            connection = s.open(data)
            if data.endswith(b"}"):
                connection.recv(1)
            connection.close()
    s.wait_for("sequences_running", 0)
    equal(400, s.call("/v1/completions", b"x", {"Content-Length": "1"})[0], "a short body")
    # A body that never comes, and a reader that never reads, hold a connection each and nothing else.
    waiting = s.open(post("/v1/completions", long)[:-5])
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    slow.connect(("127.0.0.1", s.port))
    slow.sendall(post("/v1/completions", {**long, "n": 16, "stream": True, "logprobs": 5}))
    equal(s.text(model="sql", prompt="Hello", max_tokens=5), s.text(model="sql", prompt="Hello", max_tokens=5), "answers beside them")
    s.wait_for("sequences_running", 0)
    waiting.settimeout(60), slow.settimeout(60)
    received = b""
    while part := waiting.recv(4096):
        received += part
    has("400", received.decode().splitlines()[0] if received else "400", "the status of a body that never comes")
    slow.close(), waiting.close()
    for garbage in (b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n"):
        connection = s.open(b"")
        try:
            connection.sendall(garbage)
            connection.settimeout(20)
            connection.recv(1000)
        except OSError:
            pass
        connection.close()
    equal(200, s.call("/health")[0], "health after all of it")


def limits(model):
    with Server(model, "--api-key", "secret", "--max-num-seqs", "1", "--max-waiting-seqs", "1",
                "--kv-cache-tokens", "256", "--quiet") as s:
        key = {"Authorization": "Bearer secret"}
        equal(200, s.call("/health")[0], "health without a key")
        for wrong in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secret2"}, {"Authorization": "secret"}):
            equal(401, s.call("/v1/models", None, wrong)[0], "a wrong key")
            equal(401, s.call("/v1/completions", {"prompt": "x"}, wrong)[0], "a wrong key")
        equal(200, s.call("/v1/models", None, key)[0], "the key")
        equal(403, s.call("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "a"}, key)[0], "loading where it is off")
        statuses, lock = [], threading.Lock()

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
            body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body), key)
            answer = connection.getresponse()
            answer.read()
            with lock:
                statuses.append((answer.status, answer.getheader("Retry-After")))
            connection.close()

        while (429, "1") not in statuses:
            threads = [threading.Thread(target=ask) for _ in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        equal({(200, None), (429, "1")}, set(statuses), "the answers of a full queue")


def the_end(model):
    sql = f"sql={llama}/multi/a"
    for by in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        with Server(model, sql, "--max-waiting-seqs", "1000") as s:
            def ask(k):
                try:
                    status, answer = s.call("/v1/completions", {"model": "sql", "prompt": "Hello", "seed": k, "max_tokens": 200})
                    return status if status != 200 else len(answer["choices"])
                except OSError:
                    return "closed"
                except http.client.HTTPException:
                    return "closed"

            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                asked = [pool.submit(ask, k) for k in range(200)]
                while s.figure("requests_total") < 20:
                    pass
                code = s.end(by)
                got = [a.result() for a in asked]
            if by != signal.SIGKILL:
                equal(0, code, "the exit code")
                equal(set(), set(got) - {1, 503, "closed"}, "answers at the end")
                if got.count(1) < 20:
                    raise AssertionError(f"requests that were accepted were not finished: {got}")
    result = subprocess.run([program, model, f"sql={work}/adapters/broken"], capture_output=True, text=True)
    equal(1, result.returncode, "the exit code where an adapter is broken")
    has("adapter 'sql'", result.stderr, "its error")


def more_limits(model):
    broken = f"broken={work}/adapters/broken"
    with Server(model, broken, f"sql={llama}/multi/a", "--lazy-adapters", "--max-num-seqs", "1",
                "--request-timeout", "3", "--max-connections", "6", "--max-waiting-seqs", "100000") as s:
        status, answer = s.call("/v1/completions", {"model": "broken", "prompt": "x"})
        equal(500, status, "the status where an adapter cannot be read")
        has("adapter_config.json", answer["error"]["message"], "its reason")
        shutil.copytree(f"{llama}/multi/a", f"{work}/adapters/broken", dirs_exist_ok=True)
        equal(s.text(model="sql", prompt="x"), s.text(model="broken", prompt="x"), "a folder that was mended")
        # More requests than connections; none is lost.
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            got = list(pool.map(lambda k: s.call("/v1/completions", {"prompt": "x", "max_tokens": 2})[0], range(48)))
        equal([200] * 48, got, "the answers of more clients than connections")
        # A request that is not over in its time, and one that waits behind it.
        endless = {"prompt": "x", "max_tokens": 200, "n": 5000, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            first = pool.submit(s.call, "/v1/completions", endless)
            s.wait_for("sequences_running", 1)
            asked = s.figure("requests_total")
            late = pool.submit(s.call, "/v1/completions", {"prompt": "x", "priority": 5})
            s.wait_for("requests_total", asked + 1)
            pool.submit(s.call, "/v1/completions", endless)
            status, answer = first.result()
            equal((200, "timeout"), (status, answer["choices"][-1]["finish_reason"]), "a request that takes too long")
            status, answer = late.result()
            equal(504, status, "the status of one that waits too long")
        # A client that closes its writing side is gone.
        before = s.figure('sequences_finished_total{reason="cancelled"}')
        connection = s.open(post("/v1/completions", {**endless, "stream": True}))
        connection.recv(10)
        connection.shutdown(socket.SHUT_WR)
        s.wait_for("sequences_running", 0)
        if s.figure('sequences_finished_total{reason="cancelled"}') == before:
            raise AssertionError("a client that is gone did not end its sequences")
        connection.close()
    with Server(model, "--shutdown-timeout", "1000", "--max-num-seqs", "1", "--max-waiting-seqs", "100000") as s:
        connection = s.open(post("/v1/completions", {**endless, "n": 20000, "stream": True}))
        connection.recv(10)
        s.process.send_signal(signal.SIGTERM)
        while s.call("/health")[0] == 200:
            pass
        equal(503, s.call("/v1/completions", {"prompt": "x"})[0], "a request after SIGTERM")
        equal(0, s.end(), "the exit code after a second signal")
        connection.close()


with tempfile.TemporaryDirectory(dir=folder) as work:
    model = work + "/base"
    os.mkdir(model)
    model_with_words(model)
    folders = work + "/adapters"
    os.mkdir(folders)
    for name in ("a", "c"):
        shutil.copytree(f"{llama}/multi/{name}", f"{folders}/{name}")
    os.mkdir(f"{folders}/broken")
    os.symlink(os.path.abspath(f"{llama}/multi"), f"{folders}/link")
    answers(model)
    with Server(model, f"sql={llama}/multi/a", f"chat={llama}/multi/c", "--adapter-folder", folders,
                "--max-body-megabytes", "2", "--read-timeout", "2", "--write-timeout", "2",
                "--max-waiting-seqs", "1000") as server:
        for part in (completions, errors, adapters, usual_adapters, faults):
            part(server)
            print(part.__name__, "done", flush=True)
        has("<title>Graft</title>", server.call("/", raw=True)[1].decode(), "the page")
        equal(0, server.end(), "the exit code after SIGTERM")
    for part in (limits, unloading_while_waiting, vanished_in_the_queue, stopped_log, memory_limit, disk_full, the_end, more_limits):
        part(model)
        print(part.__name__, "done", flush=True)
