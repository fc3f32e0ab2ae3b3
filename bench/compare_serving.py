# SPDX-License-Identifier: Apache-2.0
# Tokens per second of examples/serve beside PEFT's mixed batch: eight streams with eight LoRA adapters of rank 8 on one
# model in float, the same prompts and numbers of tokens, in turns.
#     python3 bench/compare_serving.py MODEL build/examples/serve/serve --json bench/results/cpu-serving.json
# MODEL is a Hugging Face folder, or a GGUF file, which is written as one first. It needs torch, transformers and peft.
# The adapters have random weights: what they say does not matter to the time they take. The fastest of all turns counts,
# because other work on the machine only makes one slower. A second part loads further adapters of four methods while the
# streams run, with the times to the first token and between tokens of those that wait for none.
import argparse
import http.client
import json
import os
import subprocess
import tempfile
import threading
import time

STREAMS, PROMPT, TOKENS = 8, 32, 48


def options():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("serve")
    a.add_argument("--turns", type=int, default=3)
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--json")
    return a.parse_args()


def prompt_of(k):
    return [100 + (37 * k + 11 * i) % 4000 for i in range(PROMPT)]


class Peft:
    """Makes the model's folder and the adapters, and generates with them."""

    def __init__(self, o, work):
        import peft
        import torch
        import transformers
        torch.set_num_threads(o.threads)
        self.torch, self.folder = torch, o.model
        where = {"pretrained_model_name_or_path": o.model}
        if o.model.endswith(".gguf"):
            where = {"pretrained_model_name_or_path": os.path.dirname(os.path.abspath(o.model)),
                     "gguf_file": os.path.basename(o.model)}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
        if "gguf_file" in where:  # what was dequantized from a GGUF file is not saved unless it is another model
            plain = transformers.AutoModelForCausalLM.from_config(self.model.config, dtype=torch.float32)
            plain.config.__dict__.pop("quantization_config", None)
            plain.load_state_dict(self.model.state_dict())
            self.model = plain.eval()
            self.folder = os.path.join(work, "model")
            self.model.save_pretrained(self.folder)
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        few = ["q_proj", "v_proj"]
        torch.manual_seed(1)
        self.later = {
            "dora": peft.LoraConfig(r=8, use_dora=True, target_modules=linear, init_lora_weights=False),
            "oft": peft.OFTConfig(r=0, oft_block_size=32, target_modules=few, init_weights=False),
            "hra": peft.HRAConfig(r=8, target_modules=few, init_weights=False),
            "ia3": peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"],
                                  init_ia3_weights=False)}
        self.adapters = {}
        for name, config in self.later.items():
            self.save(work, name, config)
        wrapped = None
        for k in range(STREAMS):
            config = peft.LoraConfig(r=8, target_modules=linear, init_lora_weights=False)
            if wrapped is None:
                wrapped = peft.get_peft_model(self.model, config, adapter_name=f"lora{k}")
            else:
                wrapped.add_adapter(f"lora{k}", config)
        wrapped.save_pretrained(os.path.join(work, "lora"))
        for k in range(STREAMS):
            self.adapters[f"lora{k}"] = os.path.join(work, "lora", f"lora{k}")
        self.wrapped = wrapped.eval()

    def save(self, work, name, config):
        import peft
        wrapped = peft.get_peft_model(self.model, config)
        self.adapters[name] = os.path.join(work, name)
        wrapped.save_pretrained(self.adapters[name])
        self.model = wrapped.unload()

    def seconds(self):
        ids = self.torch.tensor([prompt_of(k) for k in range(STREAMS)])
        begin = time.perf_counter()
        with self.torch.inference_mode():
            out = self.wrapped.generate(input_ids=ids, attention_mask=self.torch.ones_like(ids), do_sample=False,
                                        max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                                        adapter_names=[f"lora{k}" for k in range(STREAMS)])
        assert out.shape[1] == PROMPT + TOKENS
        return time.perf_counter() - begin


class Serve:
    def __init__(self, o, folder, adapters, *more):
        named = [f"{n}={f}" for n, f in adapters.items()]
        self.process = subprocess.Popen([o.serve, folder, "--port", "0", "--quiet", "--no-prefix-reuse", "--context", "256",
                                         *more, *named], stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": str(o.threads)})
        for line in self.process.stdout:
            if "listening at" in line:
                self.port = int(line.rsplit(":", 1)[1])
            if "ready" in line:
                return
        raise RuntimeError("the server does not start")

    def stream(self, model, k, tokens=TOKENS):
        """The times of the tokens, after the request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"model": model, "prompt": prompt_of(k), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "stream": True}
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer, times = connection.getresponse(), []
        if answer.status != 200:
            raise RuntimeError(answer.read())
        while line := answer.readline():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["finish_reason"] is None:
                times.append(time.perf_counter() - begin)
        connection.close()
        return times

    def seconds(self):
        made = [None] * STREAMS

        def ask(k):
            made[k] = len(self.stream(f"lora{k}", k))

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(STREAMS)]
        begin = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert made == [TOKENS] * STREAMS, made
        return time.perf_counter() - begin

    def figure(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(f"graft_{name} "):
                return float(line.split()[-1])
        raise RuntimeError("there is no figure " + name)

    def end(self):
        self.process.terminate()
        self.process.wait()


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def times_of_streams(server, names, other):
    """The times of streams with `names` while, with `other`, adapters are loaded for requests beside them."""
    first, between, ended = [], [], threading.Event()

    def ask(k):
        for turn in range(3):
            times = server.stream(names[k], k)
            first.append(times[0])
            between.extend(b - a for a, b in zip(times, times[1:]))

    def load():
        while not ended.is_set():
            for name in other:
                server.stream(name, 0, 1)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(names))]
    loader = threading.Thread(target=load)
    if other:
        loader.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ended.set()
    if other:
        loader.join()
    return {"first_p50": quantile(first, .5), "first_p99": quantile(first, .99), "between_p50": quantile(between, .5),
            "between_p99": quantile(between, .99)}


def main():
    o = options()
    with tempfile.TemporaryDirectory() as work:
        peft = Peft(o, work)
        loras = {n: f for n, f in peft.adapters.items() if n.startswith("lora")}
        server = Serve(o, peft.folder, loras)
        ours, theirs = [], []
        for _ in range(o.turns):
            ours.append(server.seconds())
            theirs.append(peft.seconds())
        alone = times_of_streams(server, [f"lora{k}" for k in range(4)], [])
        server.end()
        # Room for five adapters, four of which have streams all the time: every other one that is asked for is loaded.
        server = Serve(o, peft.folder, peft.adapters, "--adapters", "5", "--lazy")
        for k in range(4):
            server.stream(f"lora{k}", k, 1)
        loading = times_of_streams(server, [f"lora{k}" for k in range(4)], ["dora", "oft", "hra", "ia3"])
        loads = server.figure("adapters_loaded_total") - 4
        longest = server.figure("step_seconds_longest_while_loading")
        server.end()
    made = STREAMS * TOKENS
    figures = {"streams": STREAMS, "prompt": PROMPT, "tokens": TOKENS, "threads": o.threads, "turns": o.turns,
               "serve_tokens_per_second": made / min(ours), "peft_tokens_per_second": made / min(theirs),
               "ratio": min(theirs) / min(ours), "adapters_loaded": loads, "longest_step_while_loading": longest,
               "without_loading": alone, "while_loading": loading}
    print(json.dumps(figures, indent=1))
    if o.json:
        with open(o.json, "w") as file:
            json.dump(figures, file, indent=1)


main()
