#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of llama.cpp and transformers on the model of ./run real, where they are installed.

    real_peers.py MODEL.gguf ADAPTER.gguf QUESTION        each peer runs in a process of its own
"""
import importlib.util
import os
import resource
import subprocess
import sys
import time

TOKENS = 60


def report(name, prompt, first, count, rest, text):
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{name}: {text.strip()}\nprompt: {prompt} tokens, {first:.2f} s to the first new one; then "
          f"{(count - 1) / rest if rest > 0 else 0:.1f} tokens per second; at most {memory:.0f} MB of memory", flush=True)


def llama_cpp(model, adapter, question):
    from llama_cpp import Llama
    for path, name in ((None, "llama.cpp"), (adapter, "llama.cpp with the adapter")):
        lm = Llama(model, n_ctx=512, lora_path=path, verbose=False)
        begin, first, text, count = time.time(), None, "", 0
        for part in lm.create_chat_completion([{"role": "user", "content": question}], max_tokens=TOKENS, temperature=0,
                                              stream=True):
            piece = part["choices"][0]["delta"].get("content")
            if piece is None:
                continue
            first = first or time.time()
            text, count = text + piece, count + 1
        report(name, lm.n_tokens - count, first - begin, count, time.time() - first, text)


def transformers(model, adapter, question):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    folder, file = os.path.split(os.path.abspath(model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    lm = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)["input_ids"]
    with torch.inference_mode():
        begin = time.time()
        lm.generate(ids, max_new_tokens=1, do_sample=False)
        first = time.time()
        out = lm.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        rest = time.time() - first - (first - begin)
    new = out[0, ids.shape[1]:]
    report("transformers in float", ids.shape[1], first - begin, len(new), rest,
           tokenizer.decode(new, skip_special_tokens=True))


if __name__ == "__main__":
    if len(sys.argv) == 5:
        {"llama_cpp": llama_cpp, "transformers": transformers}[sys.argv[1]](*sys.argv[2:])
        sys.exit()
    for package, also in (("llama_cpp", ()), ("transformers", ("torch", "gguf"))):
        absent = [p for p in (package, *also) if importlib.util.find_spec(p) is None]
        if absent:
            print(f"{package}: not run, this Python has no {', '.join(absent)}")
        elif subprocess.run([sys.executable, __file__, package, *sys.argv[1:]], stderr=subprocess.DEVNULL).returncode:
            print(f"{package}: failed")
