# SPDX-License-Identifier: Apache-2.0
"""Whole models: transformers' Trainer, generation, torch.compile, two processes of a sharded or replicated model."""

import copy

import peft
import pytest
import torch
from methods import Net, configs, relative

import graft_torch

transformers = pytest.importorskip("transformers")


def tiny_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config)


projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
of_a_model = {
    "lora": lambda: peft.LoraConfig(target_modules=projections, r=4, task_type="CAUSAL_LM"),
    "dora": lambda: peft.LoraConfig(target_modules=projections, r=4, use_dora=True, task_type="CAUSAL_LM"),
    "oft": lambda: peft.OFTConfig(target_modules=projections, r=0, oft_block_size=4, task_type="CAUSAL_LM"),
    "vera": lambda: peft.VeraConfig(target_modules=["q_proj", "o_proj"], r=8, task_type="CAUSAL_LM"),
    "adalora": lambda: peft.AdaLoraConfig(target_modules=projections, init_r=4, target_r=2, total_step=12, tinit=2,
                                          tfinal=4, deltaT=1, task_type="CAUSAL_LM"),
}


def losses_of(model, folder):
    pytest.importorskip("accelerate")
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (16, 12))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=12, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, seed=3, disable_tqdm=True, dataloader_pin_memory=False)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("name", of_a_model)
def test_trainer_has_the_loss_curve_of_peft(name, tmp_path):
    torch.manual_seed(2)
    model = peft.get_peft_model(tiny_llama(), of_a_model[name]())
    other = graft_torch.accelerate(copy.deepcopy(model))
    assert all(s.startswith("graft: ") for s in graft_torch.report(other).values())
    before = [p.detach().clone() for p in other.parameters() if p.requires_grad]
    curve, curve2 = losses_of(model, tmp_path), losses_of(other, tmp_path)
    assert len(curve) == 12
    assert not all(torch.equal(p, q) for p, q in zip((p for p in other.parameters() if p.requires_grad), before))
    assert curve2 == pytest.approx(curve, abs=1e-3)
    model.eval(), other.eval()
    prompt = torch.randint(0, 64, (2, 5))
    with torch.no_grad():
        assert relative(other(prompt).logits, model(prompt).logits) < 1e-2


def test_generation_equals_peft():
    torch.manual_seed(2)
    config = peft.LoraConfig(target_modules=projections, r=4, init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_llama(), config).eval()
    other = graft_torch.accelerate(copy.deepcopy(model))
    prompt = torch.randint(0, 64, (2, 5))
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(other.generate(prompt, **settings), model.generate(prompt, **settings))


def test_compiled_training_step():
    torch._dynamo.reset()
    torch.manual_seed(2)
    model = peft.get_peft_model(tiny_llama(), of_a_model["dora"]())
    other = graft_torch.accelerate(copy.deepcopy(model))
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    ids = torch.randint(0, 64, (2, 12))
    losses = []
    for m, run in ((model, model), (other, compiled)):
        optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = run(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


def _data_parallel(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def _fully_sharded(model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.base_model.model.first, model.base_model.model.second):
        fully_shard(layer)
    return fully_shard(model)


_wrappers = {"DistributedDataParallel": _data_parallel, "fully_shard": _fully_sharded}


def _whole(p):
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().numpy()


def _train(wrapper, rank, name, accelerated):
    torch.manual_seed(0)
    model = peft.get_peft_model(Net(), copy.deepcopy(configs[name]))
    if accelerated:
        graft_torch.accelerate(model)
    wrapped = _wrappers[wrapper](model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for batch in torch.randn(3, 2, 8, 16):
        optimizer.zero_grad()
        wrapped(batch[rank]).square().mean().backward()
        optimizer.step()
    return [_whole(p) for p in model.parameters() if p.requires_grad], list(graft_torch.report(model).values())


def _process(rank, port, wrapper, queue):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    trained = {name: (_train(wrapper, rank, name, False), _train(wrapper, rank, name, True))
               for name in ("lora", "dora", "oft")}
    if rank == 0:
        queue.put(trained)
    dist.destroy_process_group()


@pytest.mark.parametrize("wrapper", _wrappers)
def test_two_processes(wrapper):
    import socket

    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_process, args=(rank, port, wrapper, queue)) for rank in range(2)]
    for w in workers:
        w.start()
    trained = queue.get(timeout=600)
    for w in workers:
        w.join(timeout=300)
        assert w.exitcode == 0
    for (expected, _), (found, said) in trained.values():
        assert all(line.startswith("graft: ") and "last call" not in line for line in said), said
        for a, b in zip(expected, found):
            assert relative(torch.tensor(b), torch.tensor(a)) < 1e-4
