#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Renders every *.jinja of a folder over conversations of many kinds, with transformers and with render_chat, and prints
# where the texts differ by a byte. An error of transformers must be an error here, and the other way round.
# usage: compare_chat_templates.py RENDER_CHAT [FOLDER] [--same-errors]      needs transformers (5.x, without torch)
# FOLDER is $GRAFT_CHAT_TEMPLATES unless it is named; llama.cpp's repository has real ones in models/templates. With
# --same-errors the messages of raise_exception have to agree too. The exit status is 1 where anything differs, and 77
# with a reason where the folder, the program or transformers is missing. compared.txt in chat_templates has a result.
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TZ"] = "UTC"
time.tzset()

try:
    import jinja2
    from transformers.utils import chat_template_utils
except ImportError as missing:
    print(f"skipped: {missing}; pip install transformers jinja2")
    sys.exit(77)

NOW = 1735787045  # 2025-01-02 03:04:05


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW)


chat_template_utils.datetime = Clock

weather = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather of a city, e.g. \"Zürich\" <b>&</b> 'Bern'",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "exact": {"type": ["boolean", "null"]},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number", "default": 1.5}},
                  "required": ["lat"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["city"]},
    "return": {"type": "string"}}}
nothing = {"type": "function", "function": {
    "name": "now", "description": "The time.\nIn two lines.", "parameters": {"type": "object", "properties": {}}}}
bare = {"type": "function", "function": {"name": "ping", "description": "Pings", "parameters": {}}}


def call(arguments, id="call00001", name="get_weather"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


system = {"role": "system", "content": "You are   helpful. \n"}
arguments = {"city": "Zürich \"old\" 東京", "days": 3, "exact": True, "none": None, "f": 0.1, "tags": ["a", "b'c"],
             "where": {"lat": 47.25}}
first = [user("What is the weather?"), assistant("", tool_calls=[call(arguments)])]
result = {"role": "tool", "content": "{\"t\": 21.5}", "name": "get_weather", "tool_call_id": "call00001"}
conversations = {
    "user": [user("Hello, wörld! 😀 <b>")],
    "spaces": [user("  \n Hello \t\n")],
    "system": [system, user("Hi")],
    "turns": [system, user("Hi"), assistant(" Hello. "), user("And now?"), assistant("Bye\n"), user("3")],
    "answered": [system, user("Hi"), assistant("Hello.")],
    "empty": [],
    "only system": [system],
    "two users": [user("a"), user("b")],
    "assistant first": [assistant("Hello."), user("Hi")],
    "late system": [user("Hi"), system, user("again")],
    "developer": [{"role": "developer", "content": "Be brief."}, user("Hi")],
    "strange role": [user("Hi"), {"role": "stranger", "content": "what"}],
    "call": first,
    "call, result": [system, *first, result],
    "call, result, answer": [system, *first, result, assistant("21.5 degrees"), user("Thanks"), assistant("You're welcome")],
    "call as text": [user("w"), assistant("", tool_calls=[call(json.dumps(arguments))]), result],
    "call without content": [user("w"), {"role": "assistant", "tool_calls": [call(arguments)]}, result],
    "call with none": [user("w"), assistant(None, tool_calls=[call(arguments)]), result, assistant("ok")],
    "call with text": [user("w"), assistant("Let me see.", tool_calls=[call({})]), result],
    "two calls": [user("w"), assistant("", tool_calls=[call(arguments), call({"city": "Bern"}, "call00002")]), result,
                  {**result, "tool_call_id": "call00002", "content": "rain"}, assistant("Done"), user("more")],
    "functions.name:0": [user("w"), assistant("", tool_calls=[call(arguments, "functions.get_weather:0")]),
                         {**result, "tool_call_id": "functions.get_weather:0"}],
    "result as dict": [*first, {**result, "content": {"t": 21.5, "ok": True}}],
    "result as list": [*first, {**result, "content": [{"type": "text", "text": "21"}]}],
    "reasoning": [user("Why?"), assistant("Because.", reasoning_content="Let me think.\nYes."), user("Really?"),
                  assistant("Yes", reasoning="More."), user("!")],
    "thinking and call": [user("Why?"), assistant("", thinking="Hm.", tool_calls=[call(arguments)]), result],
    "think tags": [user("Why?"), assistant("<think>\nHm\n</think>\n\nBecause."), user("So?"),
                   assistant("<think>a</think>b"), user("x")],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Sys"}]},
              user([{"type": "text", "text": "Look: "}, {"type": "text", "text": "here"}]),
              assistant([{"type": "text", "text": "Yes."}]), user("ok")],
    "image": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])],
    "image url": [user([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}, {"type": "text", "text": "?"}])],
    "video": [user([{"type": "video"}, {"type": "audio"}, {"type": "text", "text": "?"}])],
    "weight": [user("Hi"), assistant("Hello", prefix=True)],
    "ipython": [*first, {**result, "role": "ipython"}],
    "function": [*first, {**result, "role": "function"}],
    "long": [m for i in range(20) for m in (user(f"Question {i}"), assistant(f"Answer {i}", reasoning_content=f"r{i}"))],
}
documents = [{"title": "Bears", "text": "They sleep.\nLong."}, {"title": "Cats", "text": "They purr.", "doc_id": 7}]
tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
settings = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [weather, nothing]},
    {"add_generation_prompt": False, "tools": [bare, weather]},
    {"add_generation_prompt": True, "tools": []},
    {"add_generation_prompt": True, "documents": documents},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "tools": [weather]},
    {"add_generation_prompt": True, "thinking": True, "reasoning_effort": "high", "documents": documents,
     "tools": [weather]},
    {"add_generation_prompt": True, "reasoning_effort": "low", "date_string": "1 Jan 2025", "builtin_tools": ["python"],
     "tools_in_user_message": False, "custom_tools": [weather], "preserve_thinking": True, "clear_thinking": False},
]


def cases_of(template):
    for title, messages in conversations.items():
        for setting in settings:
            extra = {k: v for k, v in setting.items() if k not in ("tools", "documents", "add_generation_prompt")}
            yield title, {"template": template, "messages": messages, "tools": setting.get("tools"),
                          "documents": setting.get("documents"), "now": NOW, "variables": {**tokens, **extra},
                          "add_generation_prompt": setting["add_generation_prompt"]}


def rendered(case):
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [case["messages"]], tools=case["tools"], documents=case["documents"], chat_template=case["template"],
            add_generation_prompt=case["add_generation_prompt"], **case["variables"])
        return {"text": texts[0]}
    except jinja2.exceptions.TemplateSyntaxError as e:
        return {"error": f"line {e.lineno}: {e}"}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}", "raised": type(e) is jinja2.exceptions.TemplateError, "why": str(e)}


def with_program(program, cases):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(cases, f)
        f.flush()
        return json.loads(subprocess.run([program, f.name], capture_output=True, check=True, text=True).stdout)


def first_difference(a, b):
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at character {n}\n    transformers: {a[max(0, n - 60):n + 60]!r}\n    graft:        {b[max(0, n - 60):n + 60]!r}"


def main():
    same_errors = "--same-errors" in sys.argv
    program, *named = [word for word in sys.argv[1:] if word != "--same-errors"]
    folder = pathlib.Path((named or [os.environ.get("GRAFT_CHAT_TEMPLATES", "")])[0])
    if not pathlib.Path(program).exists():
        print(f"skipped: {program} is not built; cmake --build build --target render_chat")
        return 77
    if not named and not os.environ.get("GRAFT_CHAT_TEMPLATES"):
        print("skipped: GRAFT_CHAT_TEMPLATES names no folder of templates (llama.cpp has one, models/templates)")
        return 77
    files = different = errors = total = 0
    for path in sorted(folder.glob("*.jinja")):
        files += 1
        titles, cases = zip(*cases_of(path.read_text(encoding="utf-8")))
        wrong = 0
        for title, case, ours in zip(titles, cases, with_program(program, list(cases))):
            theirs = rendered(case)
            total += 1
            errors += "error" in theirs
            if ours.get("text") == theirs.get("text"):
                if not (same_errors and theirs.get("raised") and theirs["why"] not in ours["error"]):
                    continue
            wrong += 1
            if wrong > 3:
                continue
            print(f"{path.name}, {title}, tools {bool(case['tools'])}, {case['variables']}")
            if "text" in ours and "text" in theirs:
                print("   ", first_difference(theirs["text"], ours["text"]))
            else:
                print("    transformers:", theirs.get("error", "a text"), "\n    graft:       ", ours.get("error", "a text"))
        different += wrong
        if wrong:
            print(f"{path.name}: {wrong} of {len(cases)} differ")
    print(f"{files} templates, {total} renderings ({errors} of them errors): {different} differ")
    return 1 if different or not files else 0


if __name__ == "__main__":
    sys.exit(main())
