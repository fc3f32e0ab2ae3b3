#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of a real model here and in llama.cpp: decode of one sequence and prefill, bare and with a LoRA.

    cmake --build build --target real_model convert_adapter
    bench/compare_llama_cpp.py build SmolLM2-135M-Instruct.Q4_1.gguf --out bench/results/cpu-llama-cpp.json

Every type is a file of llama.cpp's quantizer, made of the same F32 copy of MODEL; both programs read that file. The LoRA
has rank 16 and is on all linear layers. Times are processor time of one thread, so that other work of the machine counts
less; of a token's step it is the difference between two runs that decode different numbers of tokens, of a prompt that
between two lengths of the prompt, so that loading counts in neither. The two programs take turns, and the least of all
rounds counts. It needs llama-cpp-python (LLAMA_CPP_LIB_PATH names another folder of its library), gguf and numpy; where
they are missing it says so and exits with 77.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "golden"))
sys.dont_write_bytecode = True
os.environ["OMP_NUM_THREADS"] = "1"
import compare_llama_cpp as peer  # noqa: E402  which exits with 77 where llama.cpp is missing

TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2, "q4_k_m": 15}
SHORT, LONG, STEPS = 32, 288, 96


def ids_of(length):
    return [[1] + [(7919 * i) % 40000 + 100 for i in range(length - 1)]]


def ours(build, file, adapter, length, tokens, made):
    peer.write_ids(made / "ids", ids_of(length))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peer.run(build / "test/golden/real_model", "greedy", file, made / "ids", tokens, *([adapter] if adapter else []))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Theirs:
    """A file in llama.cpp, as it runs by default but for the number of threads."""

    def __init__(self, file, adapter):
        lib = self.lib = peer.lib
        self.model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        how = lib.llama_context_default_params()
        how.n_ctx = how.n_batch = how.n_ubatch = 512
        how.n_threads = how.n_threads_batch = 1
        self.context = lib.llama_init_from_model(self.model, how)
        if adapter:
            one = (lib.llama_adapter_lora_p_ctypes * 1)(lib.llama_adapter_lora_init(self.model, str(adapter).encode()))
            lib.llama_set_adapters_lora(self.context, one, 1, (lib.ctypes.c_float * 1)(1.0))

    def run(self, ids):
        tokens = (self.lib.llama_token * len(ids))(*ids)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(ids))) != 0:
            raise SystemExit("llama.cpp does not compute")

    def seconds(self, length, steps):
        """Of a prompt, and of a step after it."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        begin = time.process_time()
        self.run(ids_of(length)[0])
        prompt = time.process_time() - begin
        begin = time.process_time()
        for i in range(steps):
            self.run([100 + i])
        return prompt, (time.process_time() - begin) / max(1, steps)

    def free(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def measure(build, file, adapters, rounds, made):
    """Milliseconds of a step and of a token of a prompt, least of all rounds; adapters: ours and theirs, or none."""
    best = {k: float("inf") for k in ("ours_decode", "theirs_decode", "ours_prefill", "theirs_prefill")}
    theirs = Theirs(file, adapters[1])
    theirs.seconds(SHORT, 4)
    for _ in range(rounds):
        one, many = ours(build, file, adapters[0], SHORT, 1, made), ours(build, file, adapters[0], SHORT, 1 + STEPS, made)
        long = ours(build, file, adapters[0], LONG, 1, made)
        step = theirs.seconds(SHORT, STEPS)[1]
        prompts = [theirs.seconds(n, 0)[0] for n in (SHORT, LONG)]
        for key, value in (("ours_decode", (many - one) / STEPS), ("ours_prefill", (long - one) / (LONG - SHORT)),
                           ("theirs_decode", step), ("theirs_prefill", (prompts[1] - prompts[0]) / (LONG - SHORT))):
            best[key] = min(best[key], value * 1e3)
    theirs.free()
    return best


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("build", type=pathlib.Path)
    options.add_argument("model")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--types", nargs="*", default=list(TYPES))
    options.add_argument("--out", type=pathlib.Path)
    said = options.parse_args()
    lib = peer.lib
    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, None)
    lib.llama_backend_init()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        made = pathlib.Path(temporary)
        peer.write_adapter(said.model, made / "adapter")
        peer.run(said.build / "examples/convert_adapter", said.model, made / "adapter", made / "adapter.gguf")
        peer.write_f32(said.model, made / "f32.gguf")
        peer.FTYPES.update(TYPES)
        for kind in said.types:
            file = made / f"{kind}.gguf"
            if kind != "f32":
                peer.quantize(made / "f32.gguf", file, kind)
            for name, adapters in (("bare", (None, None)), ("LoRA r16", (made / "adapter.gguf", made / "adapter.gguf"))):
                row = {"type": kind, "adapter": name, **{
                    k: round(v, 3) for k, v in measure(said.build, file, adapters, said.rounds, made).items()}}
                rows.append(row)
                print(json.dumps(row), flush=True)
            if kind != "f32":
                file.unlink()
    if said.out:
        cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
        said.out.write_text(json.dumps({
            "unit": "ms of processor time, one thread", "prompt_lengths": [SHORT, LONG], "steps": STEPS,
            "rounds": said.rounds, "processor": cpu[0] if cpu else "", "date": time.strftime("%Y-%m-%d"),
            "llama_cpp": lib.llama_print_system_info().decode().strip(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
