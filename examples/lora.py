"""Two LoRA adapters on one language model, the curve between them, and an ensemble that stores the model once.

    pip install . transformers peft
    python examples/lora.py

A small GPT-2, made from a configuration, first learns English from the manual that comes with Python. Then only the
adapters are trained, and learn Python from Python's own source. Nothing is downloaded. To use a model from the hub or
from a local folder, let `plain()` return `AutoModelForCausalLM.from_pretrained(...)`; its base needs no training, and
the rest stays the same.

What it showed (torch 2.13.0, transformers 5.22.2, peft 0.21.2, one thread of a shared two-core CPU, 50 s of its time,
one run, 15 November 2026): the straight line between the adapters has a barrier of 0.110 in train loss and 0.113 in
test loss, the curve one of 0.000 in both. On the test text, three networks of a walk have an nll of 2.450 as an
ensemble, the first alone 2.474. On disk the three take 347 KiB, of which 251 are the base.
"""

import argparse
import ast
import inspect
import tarfile
import tempfile
import typing
from pathlib import Path
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import thalweg as tw
from thalweg.integrations.transformers import own_loss

LENGTH, BATCH, RATE = 32, 32, 1e-2
ENGLISH = "\n".join(topics.values())
PYTHON = "\n".join(map(inspect.getsource, (argparse, ast, inspect, tarfile, typing)))


def batches(text: str, first: int, last: int) -> list[dict[str, Tensor]]:
    """As transformers takes them: the labels are the tokens, here bytes, and the model itself looks one ahead."""
    tokens = torch.tensor(list(text.encode("ascii", "replace")))[first * BATCH * LENGTH : last * BATCH * LENGTH]
    return [{"input_ids": part, "labels": part} for part in tokens.reshape(-1, BATCH, LENGTH)]


def plain() -> nn.Module:
    torch.manual_seed(0)
    form = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, **form))


def adapted(base: tw.Weights, seed: int) -> nn.Module:
    """The trained base with a fresh adapter; only the adapter requires grad, so only it will move."""
    model = plain()
    base.load_into(model)
    torch.manual_seed(seed)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True
    )
    return get_peft_model(model, config)


def main(epochs: int = 5) -> None:
    task, adam = own_loss(plain()), torch.optim.Adam
    train, test = batches(PYTHON, 0, 40), batches(PYTHON, 40, 60)
    base = tw.fit(plain(), task, batches(ENGLISH, 0, 100), epochs=epochs, lr=3e-3, optimizer=adam)
    model = adapted(base, 0)

    a, b = (
        tw.fit(adapted(base, seed), task, train, epochs=epochs, lr=RATE, optimizer=adam, seed=seed) for seed in (1, 2)
    )
    curve = tw.connect(model, tw.Bezier(a, b), task, train, epochs=epochs, lr=RATE, optimizer=adam)
    for path in (tw.Segment(a, b), curve):
        print(tw.scan(model, path, task, {"train": train, "test": test}, points=9).table())

    fge = tw.FGE(cycle=2, lr_max=RATE, lr_min=RATE / 10)
    walk = tw.walk(model, task, train, fge, epochs=epochs, start=a, optimizer=adam)
    ensemble = tw.Ensemble(model, walk.members)
    print(ensemble.report(task, test).table())

    with tempfile.TemporaryDirectory() as folder:
        ensemble.save(folder)
        whole = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(
            f"{len(ensemble)} members take {whole / 2**10:.0f} KiB on disk; one base alone {_size(a) / 2**10:.0f} KiB"
        )


def _size(weights: tw.Weights) -> int:
    return sum(tensor.nbytes for tensor in weights.frozen.values())


if __name__ == "__main__":
    main()
