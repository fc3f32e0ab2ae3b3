# SPDX-License-Identifier: Apache-2.0
# Chromium without a window, over chromedriver's WebDriver protocol (Debian: chromium, chromium-driver).
import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time


def why_no_browser():
    """A sentence that says what is missing, or an empty one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install chromium chromium-driver)"
    return ""


class Browser:
    def __init__(self, folder):
        self.profile = tempfile.TemporaryDirectory(dir=folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = open(os.path.join(folder, "chromedriver.log"), "w")
        self.process = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=self.log, stderr=self.log)
        self.session = None
        options = {"binary": shutil.which("chromium"),
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                            f"--user-data-dir={self.profile.name}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        for _ in range(600):  # chromedriver is not there at once
            try:
                self.session = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
                return
            except ConnectionRefusedError:
                time.sleep(0.1)
        raise AssertionError("chromedriver does not start")

    def __enter__(self):
        return self

    def __exit__(self, *why):
        try:
            if self.session:
                self.send("DELETE", f"/session/{self.session}")
        finally:
            self.process.terminate()
            self.process.wait(30)
            self.log.close()
            self.profile.cleanup()

    def send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        value = json.loads(answer.read())["value"]
        connection.close()
        if answer.status != 200:
            raise AssertionError(f"{path}: {value}")
        return value

    def ask(self, path, body):
        return self.send("POST", f"/session/{self.session}/{path}", body)

    def open(self, address):
        self.ask("url", {"url": address})

    def run(self, script, *words):
        """The value of JavaScript, `return …`, in the page."""
        return self.ask("execute/sync", {"script": script, "args": list(words)})

    def wait(self, script, what):
        for _ in range(1200):
            if self.run("return " + script):
                return
            time.sleep(0.05)
        raise AssertionError(f"{what}: {script} is not so after a minute; the page is {self.run('return document.body.innerText')}")

    def devtools(self, command, **parameters):
        return self.ask("goog/cdp/execute", {"cmd": command, "params": parameters})

    def screen(self, width, height, phone=False, scheme="light"):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file):
        with open(file, "wb") as to:
            to.write(base64.b64decode(self.send("GET", f"/session/{self.session}/screenshot")))

    def console(self):
        return [e["message"] for e in self.ask("se/log", {"type": "browser"})]

    def addresses(self):
        """What the page asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.ask("se/log", {"type": "performance"})]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
