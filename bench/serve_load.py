# SPDX-License-Identifier: Apache-2.0
# Load on a running server (examples/serve): many clients at the same time, each request with an adapter of its own.
#     python3 bench/serve_load.py http://127.0.0.1:8000 --clients 200 --requests 10000
# A set of requests is answered alone first; every answer under load is compared with that one. Prints tokens per
# second, the times to the first token and between tokens, and the memory of the server. The exit code is 1 if a request
# failed or an answer differs; on a GPU a drawn answer may, where rounding decides between two tokens. With --seconds it
# runs for a time instead, for a soak.
import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse


def options():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("server")
    a.add_argument("--clients", type=int, default=200)
    a.add_argument("--requests", type=int, default=10000)
    a.add_argument("--seconds", type=float, help="runs so long, whatever --requests says")
    a.add_argument("--distinct", type=int, default=256, help="different requests, each answered alone first")
    a.add_argument("--prompt", type=int, default=24, help="tokens of a prompt, on average")
    a.add_argument("--tokens", type=int, default=24, help="tokens of an answer")
    a.add_argument("--shared", type=int, default=0, help="tokens that all prompts of an adapter begin with")
    a.add_argument("--key", default="")
    a.add_argument("--models", help="names, separated by commas; not given: all of the server")
    a.add_argument("--json", help="writes the figures to this file")
    return a.parse_args()


class Client:
    def __init__(self, o):
        self.o, self.at = o, urllib.parse.urlparse(o.server)
        self.connection = None

    def call(self, path, body=None):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=600)
        headers = {"Authorization": "Bearer " + self.o.key} if self.o.key else {}
        try:
            self.connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            return self.connection.getresponse()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.connection = None
            raise

    def ask(self, request):
        """Returns the text, the time to the first token and the times between tokens."""
        begin = last = time.perf_counter()
        first, between, text, finished = None, [], "", False
        answer = self.call("/v1/completions", {**request, "stream": True})
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {answer.read()[:300]}")
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                finished = True
                continue
            now = time.perf_counter()
            choice = json.loads(line[6:])["choices"][0]
            text += choice["text"]
            if first is None:
                first = now - begin
            elif choice["finish_reason"] is None:
                between.append(now - last)
            last = now
        if not finished:
            raise RuntimeError("a stream ended before its end")
        return text, first, between

    def figure(self, name):
        for line in self.call("/metrics").read().decode().splitlines():
            if line.startswith(f"graft_{name} "):
                return float(line.split()[-1])
        return float("nan")


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def main():
    o = options()
    watcher = Client(o)
    models = o.models.split(",") if o.models else [m["id"] for m in json.loads(watcher.call("/v1/models").read())["data"]]
    rng = random.Random(1)
    requests = []
    for k in range(o.distinct):
        model = models[k % len(models)]
        ids = random.Random(model)
        prompt = [ids.randrange(3, 250) for _ in range(o.shared)]
        prompt += [rng.randrange(3, 250) for _ in range(rng.randint(1, 2 * o.prompt - 1))]
        requests.append({"model": model, "prompt": prompt, "max_tokens": o.tokens, "seed": k, "ignore_eos": True,
                         "temperature": rng.choice([0, 0.8, 1.2])})
    expected = [watcher.ask(r)[0] for r in requests]
    memory = [watcher.figure("resident_memory_bytes")]
    before = watcher.figure("generated_tokens_total")
    lock = threading.Lock()
    todo, errors, wrong, firsts, betweens, done = o.requests, [], [], [], [], 0
    begin = time.perf_counter()

    def work(seed):
        nonlocal todo, done
        client, mine = Client(o), random.Random(seed)
        while True:
            with lock:
                if todo == 0 or (o.seconds and time.perf_counter() - begin > o.seconds):
                    return
                todo -= 0 if o.seconds else 1
            k = mine.randrange(len(requests))
            try:
                text, first, between = client.ask(requests[k])
            except (OSError, RuntimeError, http.client.HTTPException) as e:
                with lock:
                    errors.append(repr(e))
                continue
            with lock:
                done += 1
                if text != expected[k]:
                    wrong.append((requests[k]["model"], expected[k], text))
                if len(firsts) < 1000000:
                    firsts.append(first), betweens.extend(between)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(o.clients)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        time.sleep(1)
        memory.append(watcher.figure("resident_memory_bytes"))
        if len(memory) % 60 == 0:
            print(f"{len(memory)} s, {done} requests, {memory[-1] / 2**20:.0f} MiB", flush=True)
    for t in threads:
        t.join()
    seconds = time.perf_counter() - begin
    figures = {"clients": o.clients, "models": len(models), "requests": done, "errors": len(errors), "wrong": len(wrong),
               "seconds": seconds, "tokens_per_second": (watcher.figure("generated_tokens_total") - before) / seconds,
               "first_token_p50_ms": quantile(firsts, .5) * 1e3, "first_token_p99_ms": quantile(firsts, .99) * 1e3,
               "between_tokens_p50_ms": quantile(betweens, .5) * 1e3, "between_tokens_p99_ms": quantile(betweens, .99) * 1e3,
               "memory_begin_mib": memory[0] / 2**20, "memory_half_mib": memory[len(memory) // 2] / 2**20,
               "memory_end_mib": memory[-1] / 2**20,
               "memory_every_minute_mib": [round(m / 2**20, 1) for m in memory[::60]],
               "longest_step_ms": watcher.figure("step_seconds_longest") * 1e3,
               "longest_step_while_loading_ms": watcher.figure("step_seconds_longest_while_loading") * 1e3,
               "adapters_loaded": watcher.figure("adapters_loaded_total")}
    for name, value in figures.items():
        print(f"{name:32} {value if isinstance(value, list) else format(value, '.6g')}")
    for e in errors[:3] + wrong[:3]:
        print(e)
    if o.json:
        with open(o.json, "w") as file:
            json.dump(figures, file, indent=1)
    sys.exit(1 if errors or wrong else 0)


main()
