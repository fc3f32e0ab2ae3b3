# SPDX-License-Identifier: Apache-2.0
# OpenAI's own Python client on the server: chats, streams, completions, errors, models, streams that are closed early.
#     python3 test/programs/serve_openai.py FOLDER SERVE
# It runs with the package openai of this Python or of the environment that ./run test makes below build-openai, and is
# skipped, with 77, where there is neither.
import os
import sys
import tempfile

import server_under_test
from server_under_test import equal, llama, model_with_words

folder, program = sys.argv[1:3]
environment = "build-openai/environment/bin/python"
try:
    import openai
except ImportError:
    if not os.path.exists(environment) or os.path.abspath(sys.executable) == os.path.abspath(environment):
        print("skipped: the package openai is not installed; ./run test installs it below build-openai")
        sys.exit(77)
    os.execv(environment, [os.path.abspath(environment), *sys.argv])


def client(s):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="any", max_retries=0)
    equal(["sql", "chat"], [m.id for m in client.models.list() if m.model_dump()["parent"]], "the models")
    messages = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="sql", messages=messages, max_tokens=12, seed=5, logprobs=True, top_logprobs=1)
    equal(12, whole.usage.completion_tokens, "the tokens of a chat")
    equal(12, len(whole.choices[0].logprobs.content), "its log probabilities")
    stream = client.chat.completions.create(model="sql", messages=messages, max_tokens=12, seed=5, stream=True)
    equal(whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream), "a stream")
    text = client.completions.create(model="sql+chat", prompt="Hello", max_tokens=4, temperature=0)
    equal(s.text(model="sql+chat", prompt="Hello", max_tokens=4), text.choices[0].text, "a completion")
    for model, change, kind in (("nobody", {}, openai.NotFoundError), ("sql", {"temperature": -3}, openai.BadRequestError),
                                ("sql", {"max_tokens": 10**6}, openai.BadRequestError)):
        try:
            client.chat.completions.create(model=model, messages=messages, **change)
            raise AssertionError(f"{model} {change} is accepted")
        except kind as e:
            equal(True, len(e.message) > 20, "the message of an error")
    before = s.figure('sequences_finished_total{reason="cancelled"}')
    for _ in range(50):  # a tiny model may end a request before its client does
        stream = client.chat.completions.create(model="sql", messages=messages, max_tokens=200, n=8, stream=True,
                                                extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        s.wait_for("sequences_running", 0)
        if s.figure('sequences_finished_total{reason="cancelled"}') > before:
            return
    raise AssertionError("no stream that was closed ended its request")


with tempfile.TemporaryDirectory(dir=folder) as work:
    model = work + "/base"
    os.mkdir(model)
    model_with_words(model)
    with server_under_test.Server(program, work, model, f"sql={llama}/multi/a", f"chat={llama}/multi/c") as server:
        client(server)
        equal(0, server.end(), "the exit code after SIGTERM")
print("openai", openai.__version__)
