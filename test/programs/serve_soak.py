# SPDX-License-Identifier: Apache-2.0
# The whole server under load (bench/serve_load.py), with adapters of eight methods of which fewer fit into memory, while
# other clients vanish, send malformed bodies, and load, replace and unload adapters: every answer is that computed alone,
# and the server ends in order. Built with sanitizers, a finding of theirs fails it.
#     python3 test/programs/serve_soak.py FOLDER SERVE [OPTION-OF-SERVE_LOAD...]
import random
import subprocess
import sys
import tempfile
import threading

import server_under_test
from server_under_test import equal, llama, post

folder, program, *load = sys.argv[1:]
methods = ["lora", "dora", "oft", "ia3", "hra", "loha", "vera", "miss"]
reports = ("Sanitizer", "runtime error")


def misbehave(s, ended, seed, problems):
    """Requests that are given up or wrong, and adapters that come and go, until the load is over."""
    rng = random.Random(seed)
    name = f"guest{seed}"
    asked = {"model": name, "prompt": [5, 9, 200], "max_tokens": 30, "ignore_eos": True, "n": 3, "stream": True}
    while not ended.is_set():
        try:
            folders = [f"{m}/adapter_init" for m in rng.sample(methods, 2)]
            for path in folders:
                status, answer = 0, "try again later"  # as it is answered while a request has the adapter read
                while status != 200 and "try again later" in str(answer):
                    status, answer = s.call("/v1/load_lora_adapter",
                                            {"lora_name": name, "lora_path": path, "load_inplace": True})
                if status != 200:
                    problems.append(f"loading {path}: {status} {answer}")
                vanishes = s.open(post("/v1/completions", {**asked, "stream": rng.random() < .5}))
                if rng.random() < .5:
                    vanishes.recv(rng.choice([1, 100, 5000]))
                vanishes.close()
            for status, body in ((400, b"{" * 1000), (400, b'{"prompt": "\xff"}'), (400, b'{"prompt": [5], "n": 0}'),
                                 (404, b'{"model": "nobody", "prompt": [5]}')):
                got = s.call("/v1/completions", body)[0]
                if got != status:
                    problems.append(f"{body[:40]}: {got}, expected {status}")
            s.open(post("/v1/completions", asked)[:-7]).close()
            if s.call("/v1/unload_lora_adapter", {"lora_name": name})[0] != 200:
                problems.append("an adapter could not be unloaded")
        except OSError as e:
            problems.append(repr(e))


with tempfile.TemporaryDirectory(dir=folder) as work:
    names = {f"{m}{k}": f"{llama}/{m}/adapter_init" for k in range(4) for m in methods}
    named = [f"{name}={path}" for name, path in names.items()]
    with server_under_test.Server(program, work, f"{llama}/base", *named, "--adapter-folder", llama, "--max-loaded-adapters", "12",
                                  "--lazy-adapters", "--max-waiting-seqs", "10000", "--read-timeout", "60") as s:
        ended, problems = threading.Event(), []
        others = [threading.Thread(target=misbehave, args=(s, ended, k, problems)) for k in range(3)]
        for t in others:
            t.start()
        result = subprocess.run([sys.executable, "bench/serve_load.py", f"http://127.0.0.1:{s.port}", "--models",
                                 ",".join(["base", *names]), *load])
        ended.set()
        for t in others:
            t.join()
        s.wait_for("sequences_running", 0)
        equal(0, s.figure("log_lines_lost_total"), "lines of the log that were lost")
        code = s.end()
        s.log.seek(0)
        log = s.log.read()
        found = [line for line in log.splitlines() if any(r in line for r in reports)]
        if found or code != 0:
            print("\n".join(line for line in log.splitlines() if not line.startswith('{"time')))
        equal([], found[:3], "findings of sanitizers")
        equal([], problems[:3], "problems beside the load")
        equal(0, code, "the exit code after SIGTERM")
        equal(0, result.returncode, "the exit code of the load")
