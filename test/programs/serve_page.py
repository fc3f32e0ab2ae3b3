# SPDX-License-Identifier: Apache-2.0
# The server's page at / in Chromium: two adapters answer the same question, charts, errors, the key, and its layout on
# wide and narrow screens.
#     python3 test/programs/serve_page.py FOLDER SERVE
# It is skipped, with 77, where Chromium or its driver is missing. The screenshots are left in FOLDER/serve_page.
import os
import shutil
import sys
import tempfile

import browser
import server_under_test
from server_under_test import equal, has, llama, model_with_words, post

folder, program = sys.argv[1:3]
adapters = [f"sql={llama}/multi/a", f"chat={llama}/multi/c"]
screens = {"wide": (1280, 800, False), "narrow": (390, 844, True)}


def start(b, s):
    b.open(f"http://127.0.0.1:{s.port}/")
    b.run("window.failures = []; addEventListener('error', e => failures.push(e.message));"
          "addEventListener('unhandledrejection', e => failures.push(String(e.reason)))")


def set_field(b, field, value):
    b.run("document.querySelector(arguments[0]).value = arguments[1]", field, value)


def send(b, text):
    set_field(b, "textarea", text)
    b.run("document.querySelector('#send').click()")


def last(b, column, role="assistant"):
    return b.run("return [...document.querySelectorAll('section')][arguments[0]].querySelector('.talk p:last-child.' + arguments[1])"
                 "?.textContent", column, role)


def answered(b, n):
    b.wait(f"[...document.querySelectorAll('.talk')].every(t => t.querySelectorAll('.assistant').length == {n}) && !busy()",
           "answers in all columns")


def chat(b, s):
    start(b, s)
    b.wait("document.querySelectorAll('section').length == 2", "two columns")
    equal(["base (base)", "sql", "chat"], b.run("return [...document.querySelector('select').options].map(o => o.text)"), "the models")
    b.run("columns[0].select.value = 'sql'; columns[1].select.value = 'chat'")
    set_field(b, "#temperature", "0"), set_field(b, "#tokens", "20")
    send(b, "Hello")
    answered(b, 1)
    for column, model in enumerate(("sql", "chat")):
        expected = s.call("/v1/chat/completions", {"model": model, "max_tokens": 20, "temperature": 0,
                                                   "messages": [{"role": "user", "content": "Hello"}]})[1]
        equal(expected["choices"][0]["message"]["content"], last(b, column), f"the answer of {model} in its column")
        has("20 tokens", b.run("return columns[arguments[0]].rate.textContent", column), "what is said of it")
    # The next question has the first one and its answer before it.
    send(b, "And now?")
    answered(b, 2)
    equal(2, b.run("return columns[0].talk.querySelectorAll('.user').length"), "the questions")
    b.wait("/^[0-9]/.test(document.querySelector('#rate ~ figcaption b').textContent)", "tokens per second")
    has("adapters", b.run("return document.querySelector('#memory ~ figcaption b').textContent"), "the memory")
    b.wait("history.memory.length > 2", "figures")
    for name in ("rate", "batch", "cache", "memory"):
        drawn = b.run("const c = document.querySelector('#' + arguments[0]);"
                      "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x)", name)
        equal(True, drawn, f"the chart {name}")
    b.run("document.querySelector('#add').click()")
    equal(3, b.run("return document.querySelectorAll('section').length"), "columns after one was added")
    b.run("document.querySelectorAll('section')[2].querySelector('button').click()")
    equal(2, b.run("return document.querySelectorAll('section').length"), "columns after it was removed")
    layouts(b)
    b.run("document.querySelector('#clear').click()")
    equal(0, b.run("return document.querySelectorAll('.talk p').length"), "what is left after Clear")


def layouts(b):
    """Nothing sticks out of the screen, and everything that is used can be reached."""
    for name, (width, height, phone) in screens.items():
        for scheme in ("light", "dark"):
            b.screen(width, height, phone, scheme)
            equal(width, b.run("return innerWidth"), "the width of the screen")
            outside = b.run("return [...document.querySelectorAll('h1, canvas, figcaption, select, textarea, button, input, .rate, .talk')]"
                            ".filter(e => e.offsetParent).map(e => [e, e.getBoundingClientRect()])"
                            ".filter(([e, r]) => r.left < 0 || r.top < 0 || r.right > innerWidth + .5 || r.bottom > innerHeight + .5)"
                            ".map(([e]) => e.outerHTML.slice(0, 80))")
            equal([], outside, f"what is outside of a {name} screen")
            covered = b.run("return [...document.querySelectorAll('select, textarea, button, input')].filter(e => e.offsetParent)"
                            ".filter(e => { const r = e.getBoundingClientRect();"
                            "return !e.contains(document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2)); })"
                            ".map(e => e.outerHTML.slice(0, 80))")
            equal([], covered, f"what is covered on a {name} screen")
            talk = b.run("return Math.min(...[...document.querySelectorAll('.talk')].map(e => e.clientHeight))")
            equal(True, talk > height / 5, f"the room for answers on a {name} screen, {talk} of {height} pixels")
            b.screenshot(f"{shots}/{name}-{scheme}.png")
    b.screen(*screens["wide"])


def errors(b, s):
    set_field(b, "#tokens", "1000000")
    send(b, "Hello")
    b.wait("document.querySelectorAll('p.error').length == 2", "errors")
    has("context", last(b, 0, "error"), "an error")
    b.run("document.querySelector('#clear').click()")
    # While another request has the only place, both columns wait, and Stop takes them out of the queue.
    running = s.open(post("/v1/completions", {"prompt": "x", "max_tokens": 200, "n": 900, "ignore_eos": True, "stream": True,
                                              "priority": -1}))
    running.recv(10)
    set_field(b, "#tokens", "20")
    cancelled = 'sequences_finished_total{reason="cancelled"}'
    before = s.figure(cancelled)
    send(b, "Hello")
    b.wait("busy()", "a question that is asked")
    for _ in range(1200):
        if s.figure("sequences_waiting") > 0:
            break
    b.run("document.querySelector('#stop').click()")
    b.wait("!busy()", "Stop")
    s.wait_for(cancelled, before + 2)
    equal(0, b.run("return document.querySelectorAll('p.error').length"), "errors after Stop")
    running.close()


def key(b, s):
    start(b, s)
    b.wait("!document.querySelector('#key').parentElement.hidden", "the field of the key")
    equal(False, b.run("return document.querySelector('#hint').hidden"), "whether the page hides that it wants the key")
    b.screen(*screens["narrow"])
    b.screenshot(f"{shots}/key.png")
    b.screen(*screens["wide"])
    b.run("const k = document.querySelector('#key'); k.value = 'secret'; k.dispatchEvent(new Event('change'))")
    b.wait("document.querySelectorAll('section').length == 2", "columns after the key was typed")
    equal(True, b.run("return document.querySelector('#hint').hidden"), "whether the page hides that it wanted the key")
    set_field(b, "#tokens", "5")
    send(b, "Hello")
    answered(b, 1)
    equal(0, b.run("return document.querySelectorAll('p.error').length"), "errors with the key")
    # The server ends: the page says so, and goes on when it is asked again.
    s.end()
    send(b, "Hello")
    b.wait("document.querySelectorAll('p.error').length == 2", "errors after the server ended")


why = browser.why_no_browser()
if why:
    print("skipped:", why)
    sys.exit(77)
shots = os.path.join(folder, "serve_page")
shutil.rmtree(shots, ignore_errors=True)
os.makedirs(shots)
with tempfile.TemporaryDirectory(dir=folder) as work:
    model = work + "/base"
    os.mkdir(model)
    model_with_words(model)
    with browser.Browser(shots) as b:
        b.screen(*screens["wide"])
        for parts, options in (((chat, errors), ["--max-num-seqs", "8", "--max-waiting-seqs", "1000"]),
                               ((key,), ["--api-key", "secret"])):
            with server_under_test.Server(program, work, model, *adapters, *options) as s:
                b.open("about:blank")  # the page of the server before it asks no more
                b.addresses()
                for part in parts:
                    part(b, s)
                    print(part.__name__, "done", flush=True)
                hosts = {a.split("/")[2] for a in b.addresses() if not a.startswith(("data:", "chrome"))}
                equal({f"127.0.0.1:{s.port}"}, hosts, "the hosts that the page asked")
                equal([], b.run("return failures"), "errors of the page's own script")
