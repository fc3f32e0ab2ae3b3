#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models with experts on the CPU: transformers with PEFT, and this library, on the same folders with as many threads.

    python3 bench/compare_experts.py --bench build/bench/bench_experts --out bench/results/cpu-experts.json

The golden models, and a model in the shape of a small Qwen3-MoE (hidden size 512, 32 experts of which a token takes 4,
four layers), bare and with LoRA on all experts and on attention: forward passes over 1, 16 and 512 tokens, in sequences
of at most 32. The two candidates take turns in rounds of a few passes, and the fastest pass of each counts. With --busy
this is processor time of one thread, for machines with other work. Needs torch, transformers and peft.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import peft
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = (1, 16, 512)
SMALL = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
             intermediate_size=1024, moe_intermediate_size=256, num_experts=32, num_experts_per_tok=4, vocab_size=4096,
             max_position_embeddings=512, norm_topk_prob=True, tie_word_embeddings=False)


def make_small(folder):
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SMALL))
    model.save_pretrained(folder / "base")
    config = peft.LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                             target_parameters=["experts.gate_up_proj", "experts.down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            p.data = 0.02 * torch.randn_like(p)
    adapted.save_pretrained(folder / "lora_experts" / "adapter_init")


class Ours:
    def __init__(self, program, environment, folder, adapter):
        command = [program, str(folder / "base")] + ([str(folder / adapter / "adapter_init")] if adapter else [])
        self.child = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError(f"bench_experts ended with status {self.child.wait()}")
        return [float(n) for n in answer.split()]

    def seconds(self, count, length, passes, busy):
        return self.ask(f"{count} {length} {passes}")[1 if busy else 0]

    def end(self):
        self.child.stdin.close()
        self.child.wait()


class Theirs:
    def __init__(self, folder, adapter):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
        self.vocabulary = self.model.config.vocab_size
        if adapter:
            self.model = peft.PeftModel.from_pretrained(self.model, folder / adapter / "adapter_init")
        self.model.eval()

    def ids(self, count, length):
        return torch.tensor([[(s * 7919 + t * 104729 + 11) % self.vocabulary for t in range(length)] for s in range(count)])

    def logits(self, length):
        with torch.no_grad():
            return self.model(self.ids(1, length), use_cache=False).logits.flatten()

    def seconds(self, count, length, passes, busy):
        clock, ids, best = time.process_time if busy else time.perf_counter, self.ids(count, length), float("inf")
        with torch.no_grad():
            for _ in range(passes):
                start = clock()
                self.model(ids, use_cache=False)
                best = min(best, clock() - start)
        return best


def compare(args, name, folder, adapter, environment):
    ours, theirs, rows = Ours(args.bench, environment, folder, adapter), Theirs(folder, adapter), []
    expected, got = theirs.logits(16), torch.tensor(ours.ask("logits 16"))
    difference = float((got - expected).norm() / expected.norm())
    for tokens in TOKENS:
        length = min(tokens, 32)
        best = [float("inf")] * 2
        for _ in range(args.rounds):
            for k, one in enumerate((theirs, ours)):
                best[k] = min(best[k], one.seconds(tokens // length, length, args.passes, args.busy))
        row = {"model": name, "adapter": adapter or "none", "tokens": tokens, "peft_ms": round(best[0] * 1e3, 4),
               "graft_ms": round(best[1] * 1e3, 4), "faster": round(best[0] / best[1], 2),
               "difference_of_logits": float(f"{difference:.1e}")}
        print(f"{name:10} {row['adapter']:13} {tokens:4} tokens: {row['peft_ms']:10.3f} and {row['graft_ms']:9.3f} ms, "
              f"{row['faster']:6.2f} times as fast, logits {difference:.1e}", flush=True)
        rows.append(row)
    ours.end()
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", default=str(ROOT / "build/bench/bench_experts"))
    parser.add_argument("--golden", type=pathlib.Path, default=ROOT / "test/golden/experts/models")
    parser.add_argument("--models", nargs="*", default=["gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "small"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--passes", type=int, default=5, help="in each round")
    parser.add_argument("--busy", action="store_true", help="processor time of one thread")
    parser.add_argument("--machine", default=platform.processor() or platform.machine())
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    args.threads = 1 if args.busy else args.threads
    torch.set_num_threads(args.threads)
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    table = {"machine": args.machine, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "peft": peft.__version__,
             "transformers": transformers.__version__,
             "command": f"python3 bench/compare_experts.py --rounds {args.rounds} --passes {args.passes}" + " --busy" * args.busy,
             "threads": args.threads, "clock": "processor" if args.busy else "wall", "fastest_of": args.rounds * args.passes,
             "small": SMALL, "results": []}
    with tempfile.TemporaryDirectory() as name:
        for model in args.models:
            folder = args.golden / model
            if model == "small":
                folder = pathlib.Path(name)
                make_small(folder)
            for adapter in (None, "lora_experts"):
                table["results"] += compare(args, model, folder, adapter, environment)
                if args.out:
                    rows = ",\n  ".join(json.dumps(r) for r in table["results"])
                    head = json.dumps({k: v for k, v in table.items() if k != "results"}, indent=1)
                    args.out.write_text(head[:-2] + ',\n "results": [\n  ' + rows + "\n ]\n}\n")
    sys.exit(0 if all(r["faster"] > 1 for r in table["results"]) else 1)


if __name__ == "__main__":
    main()
