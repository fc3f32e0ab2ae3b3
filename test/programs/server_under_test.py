# SPDX-License-Identifier: Apache-2.0
# A server that a test starts, asks and ends; for serve.py and serve_page.py.
import http.client
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time

llama = "test/golden/models/llama"
template = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant] {% endif %}")


def model_with_words(folder):
    """The tiny model with a tokenizer, whose tokens are bytes, and a chat template, in an empty folder."""
    for file in ("config.json", "model.safetensors"):
        shutil.copy(f"{llama}/base/{file}", folder)
    with open(f"{folder}/generation_config.json", "w") as file:
        file.write("{}")
    shutil.copy("test/programs/bytes_tokenizer.json", f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({"chat_template": template}, file)


def equal(expected, got, what):
    if expected != got:
        raise AssertionError(f"{what}: expected {expected!r}, got {got!r}")


def has(words, text, what):
    if words not in text:
        raise AssertionError(f"{what}: expected {words!r} in {text!r}")


class Server:
    """A server on a free port that is ready. `log`: the file of its stderr; `before`: runs in its process before it."""

    def __init__(self, program, folder, model, *options, log=None, before=None):
        self.log = log or tempfile.TemporaryFile("w+", dir=folder)
        self.process = subprocess.Popen([program, model, "--port", "0", *options], stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, preexec_fn=before)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening at" in line:
                self.port = int(line.rsplit(":", 1)[1])
            if "ready" in line:
                return
        self.log.seek(0)
        raise AssertionError("the server does not start: " + "".join(self.lines) + self.log.read())

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if why[0] and self.log.readable():
            self.log.seek(0)
            print(self.log.read()[-3000:])
        self.log.close()

    def end(self, by=signal.SIGTERM):
        self.process.send_signal(by)
        return self.process.wait(120)

    def call(self, path, body=None, headers=None, raw=False):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request("POST" if body is not None else "GET", path, body, headers or {})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, data if raw else json.loads(data)
        finally:
            connection.close()

    def text(self, **asked):
        status, answer = self.call("/v1/completions", {"temperature": 0, **asked})
        if status != 200:
            raise AssertionError(f"{asked}: {status} {answer}")
        return answer["choices"][0]["text"]

    def figure(self, name):
        for line in self.call("/metrics", raw=True)[1].decode().splitlines():
            if line.startswith("graft_" + name + " "):
                return float(line.split()[-1])
        if "{" in name:
            return 0.0
        raise AssertionError("there is no figure " + name)

    def wait_for(self, name, value):
        for _ in range(1200):
            if self.figure(name) == value:
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} is {self.figure(name)}, expected {value}")

    def open(self, data):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection


def post(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def events(data):
    return [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
