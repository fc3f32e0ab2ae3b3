# SPDX-License-Identifier: Apache-2.0
"""graft_torch.Model: logits and tokens of stored models equal those that transformers and PEFT computed."""

import json
import threading

import pytest
import torch
from methods import golden, relative
from safetensors.torch import load_file

import graft_torch

models = golden.parent / "models"
pytest.importorskip("graft_torch._model", reason="this build of graft_torch has no models")
pytestmark = pytest.mark.skipif(not (models / "llama").exists(), reason="the golden models are not here")
devices = [("cpu", torch.float32)]
if torch.cuda.is_available() and graft_torch._stored_model._model.has_cuda:
    devices += [("cuda", torch.float32), ("cuda", torch.bfloat16)]
bounds = {torch.float32: 1e-4, torch.bfloat16: 0.05}


def case(arch, name):
    """The folder's numbers, and the path of the adapter."""
    return load_file(models / arch / name / "expected.safetensors"), models / arch / name / "adapter_init"


@pytest.mark.parametrize(("device", "dtype"), devices)
@pytest.mark.parametrize("arch", ["llama", "gpt2", "qwen2", "gemma2"])
def test_logits_equal_transformers(arch, device, dtype):
    expected, _ = case(arch, "base")
    model = graft_torch.Model(models / arch / "base", device=device, dtype=dtype)
    ids = list(expected["ids"])
    logits = model.logits(ids)
    assert logits.dtype == dtype and logits.device.type == device and not logits.requires_grad
    assert logits.shape == (ids[0].numel() * len(ids), model.vocabulary)
    assert relative(logits.cpu().reshape(expected["logits"].shape), expected["logits"]) < bounds[dtype]
    last = model.logits([i.tolist() for i in ids], last_only=True)
    assert relative(last.cpu(), expected["logits"][:, -1]) < bounds[dtype]


@pytest.mark.parametrize("name", ["lora", "dora", "ia3", "oft", "lora_embedding", "trainable_tokens"])
def test_adapters(name):
    expected, folder = case("llama", name)
    base = expected["logits_disabled"]
    model = graft_torch.Model(models / "llama" / "base")
    ids = list(expected["ids"])
    model.load_adapter("a", folder)
    assert model.adapters == ["a"] and model.active == []
    assert relative(model.logits(ids).reshape(base.shape), base) < 1e-4
    model.activate("a")
    assert model.active == ["a"]
    assert relative(model.logits(ids).reshape(expected["logits"].shape), expected["logits"]) < 1e-4
    model.activate()
    assert relative(model.logits(ids).reshape(base.shape), base) < 1e-4
    mixed = model.logits(ids, adapters=["a", [], "a"]).reshape(expected["logits"].shape)
    for k, of in enumerate((expected["logits"], base, expected["logits"])):
        assert relative(mixed[k], of[k]) < 1e-4
    model.remove_adapter("a")
    assert model.adapters == []


@pytest.mark.parametrize("device", sorted({d for d, _ in devices}))
def test_generated_tokens_equal_transformers(device):
    expected, folder = case("llama", "lora")
    base, _ = case("llama", "base")
    model = graft_torch.Model(models / "llama" / "base", device=device, dtype=torch.float32)
    model.load_adapter("a", folder)
    prompts, wanted = expected["ids"], expected["generated"]
    settings = {"max_new_tokens": wanted.shape[1] - prompts.shape[1], "sample": False, "eos_tokens": []}
    made = model.generate(list(prompts), adapters="a", **settings)
    assert [m.tolist() for m in made] == wanted.tolist()
    made = model.generate(prompts.tolist(), adapters=["a", [], "a"], **settings)
    assert made[0] == wanted[0].tolist() and made[2] == wanted[2].tolist() and made[1] != wanted[1].tolist()
    made = model.generate([base["ids"][0].tolist(), prompts[1].tolist()], adapters=[[], "a"], **settings)
    assert made == [base["generated"][0].tolist(), wanted[1].tolist()]


def test_sampling_follows_its_seed():
    model = graft_torch.Model(models / "llama" / "base")
    by = {"max_new_tokens": 12, "sample": True, "temperature": 1.5, "top_k": 0, "eos_tokens": []}
    first = model.generate([1, 2, 3], seed=1, **by)
    assert model.generate([1, 2, 3], seed=1, **by) == first and len(first) == 15
    assert any(model.generate([1, 2, 3], seed=k, **by) != first for k in range(2, 5))


def test_logits_are_not_copied_and_outlive_the_model():
    model = graft_torch.Model(models / "llama" / "base")
    first = model.logits([3, 1, 4])
    before = first.clone()
    second = model.logits([2, 7])
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, before)
    address = first.data_ptr()
    first.mul_(2)  # the memory is the tensor's alone
    del model
    assert first.data_ptr() == address and torch.equal(first, 2 * before)
    assert relative(graft_torch.Model(models / "llama" / "base").logits([3, 1, 4]), before) == 0


def test_threads_take_turns():
    model = graft_torch.Model(models / "llama" / "base")
    prompts = [[k, k + 1, k + 2] for k in range(6)]
    expected = [model.logits(p).clone() for p in prompts]
    found = [None] * len(prompts)

    def run(k):
        for _ in range(5):
            found[k] = model.logits(prompts[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for a, b in zip(found, expected):
        assert torch.equal(a, b)


def test_errors_say_what_is_wrong_and_change_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="nowhere"):
        graft_torch.Model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="expected cpu or cuda"):
        graft_torch.Model(models / "llama" / "base", device="meta")
    with pytest.raises(ValueError, match="the dtype is torch.float16"):
        graft_torch.Model(models / "llama" / "base", dtype=torch.float16)
    model = graft_torch.Model(models / "llama" / "base")
    _, folder = case("llama", "lora")
    model.load_adapter("a", folder)
    model.activate("a")
    y = model.logits([5, 9]).clone()
    for wrong in (lambda: model.load_adapter("a", folder), lambda: model.load_adapter("b", tmp_path),
                  lambda: model.activate("b"), lambda: model.remove_adapter("b"), lambda: model.logits([5, 256]),
                  lambda: model.logits([[]]), lambda: model.logits([-1]), lambda: model.generate([[]]),
                  lambda: model.generate([5], max_new_tokens=-1), lambda: model.generate([5], temperature=-1.0, sample=True),
                  lambda: model.logits([5], adapters="b"), lambda: model.tokenizer,
                  lambda: model.logits([1] * (model.context + 1))):
        with pytest.raises(RuntimeError) as said:
            wrong()
        assert len(str(said.value)) > 10 and "\n" not in str(said.value)
    assert model.adapters == ["a"] and torch.equal(model.logits([5, 9]), y)


def test_text_with_a_tokenizer(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (models / "llama" / "base").iterdir():
        (folder / file.name).symlink_to(file)
    vocabulary = {chr(97 + k) if k < 26 else f"<{k}>": k for k in range(256)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None, "dropout": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}}))
    model = graft_torch.Model(folder)
    ids = [ord(c) - 97 for c in "graft"]
    assert model.tokenizer.encode("graft") == ids
    assert torch.equal(model.logits("graft"), model.logits(ids))
    by = {"max_new_tokens": 4, "sample": False, "eos_tokens": []}
    assert model.generate("graft", **by) == model.tokenizer.decode(model.generate(ids, **by)[len(ids):])
    assert model.generate(["graft", "a"], **by)[0] == model.generate("graft", **by)


def test_the_extension_depends_on_no_version_of_torch():
    import shutil
    import subprocess

    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    symbols = subprocess.run(["nm", "-D", "--undefined-only", "--demangle", graft_torch._stored_model._model.__file__],
                             capture_output=True, text=True, check=True).stdout.split("\n")
    names = [line.split()[-1] for line in symbols if line.strip()]
    assert not [n for n in names if n.startswith(("c10::", "at::", "torch::"))]
