"""A Llama-shaped network of 1.2 billion parameters on one CUDA GPU: memory and time of `fit` and `connect`.

    python benchmarks/billion.py OUT.json [--weights bfloat16] [--steps 18] [--rounds 3] [--batch 4] [--length 512]

Random weights, activation checkpointing, AdamW (torch's fused one in the loop by hand, so that it needs no memory of
its own), no decay of norms. Weights are float32, computed with in bf16 by autocast, or `--weights bfloat16`, then
without autocast. Each way runs alone on the GPU with all that it needs: the model, and the curve unless it is on the
CPU. Its memory is the peak of what torch has allocated from just before the call to its end, in GB and in vectors
beyond that of the loop by hand; a vector is parameters x bytes of the weights' dtype. A step is the mean of those after
the first third of a run, and the median of the rounds, which alternate; with `stream` it is one short run.

The last two ways train adapters (LoRA, rank 8, of all linear layers) on the same base, by hand and with `connect`.

Needs transformers and peft, and no downloads. `--tiny` runs on a CPU, and shows only that everything runs.
"""

import argparse
import gc
import json
import statistics
import warnings
from functools import partial
from pathlib import Path

import peft
import torch
import transformers
from transformer_steps import Clocked, by_hand, grouped

import thalweg as tw
from thalweg.integrations.transformers import own_loss

FULL = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 32}
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Trial:
    """One network, its batches, and the ways to train it, each of which returns milliseconds per step."""

    def __init__(self, given: argparse.Namespace, device: torch.device):
        self.given, self.device, self.dtype = given, device, getattr(torch, given.weights)
        shape = {**TINY, "num_key_value_heads": 2} if given.tiny else {**FULL, "num_key_value_heads": 4}
        self.words = 100 if given.tiny else 32000
        self.config = transformers.LlamaConfig(vocab_size=self.words, max_position_embeddings=given.length, **shape)
        self.autocasts = self.dtype == torch.float32
        self.compute = partial(tw.Compute, precision="bf16" if self.autocasts else "fp32")

    def model(self, adapters: bool = False) -> torch.nn.Module:
        torch.manual_seed(0)
        with self.device:
            made = transformers.LlamaForCausalLM(self.config).to(self.dtype)
        made.gradient_checkpointing_enable({"use_reentrant": False})
        return peft.get_peft_model(made, peft.LoraConfig(r=8, target_modules=ADAPTED)) if adapters else made

    def batches(self, steps: int) -> Clocked:
        g = torch.Generator().manual_seed(0)
        tokens = torch.randint(1, self.words, (8, self.given.batch, self.given.length), generator=g).to(self.device)
        return Clocked([{"input_ids": part, "labels": part} for part in tokens], steps, self.device)

    def by_hand(self, adapters: bool = False) -> float:
        model, data = self.model(adapters), self.batches(self.given.steps)
        self.begin()
        return by_hand(model, data, self.device, self.autocasts)

    def fit(self) -> float:
        model, data = self.model(), self.batches(self.given.steps)
        self.begin()
        tw.fit(model, own_loss(model), data, compute=self.compute(), **self.settings())
        return data.per_step()

    def connect(self, adapters: bool = False, stream: bool = False, curve_on_cpu: bool = True) -> float:
        model, data = self.model(adapters), self.batches(min(6, self.given.steps) if stream else self.given.steps)
        ends = [tw.Weights.of(model).to("cpu" if curve_on_cpu else self.device) for _ in range(2)]
        ends[1].vector.mul_(1.01)
        curve, ends = tw.Bezier(*ends), None
        self.begin()
        tw.connect(model, curve, own_loss(model), data, compute=self.compute(stream=stream), **self.settings())
        return data.per_step()

    def settings(self) -> dict:
        schedule = tw.WarmupCosine(1e-4, tw.Iterations(2))
        return {"epochs": 1, "schedule": schedule, "optimizer": grouped, "progress": False}

    def begin(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def run(self, way) -> tuple[float, float]:
        """Milliseconds per step, and the peak of memory in bytes."""
        step = way()
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        self.begin()
        return step, peak


def measured(trial: Trial) -> dict:
    whole = trial.model()
    size = sum(p.numel() for p in whole.parameters())
    vector = size * trial.dtype.itemsize
    del whole
    found: dict = {"parameters": size, "dtype of a vector": trial.given.weights, "a vector, GB": round(vector / 1e9, 3)}
    usual = {
        "by hand": trial.by_hand,
        "fit": trial.fit,
        "connect": trial.connect,
        "connect, curve on the GPU": partial(trial.connect, curve_on_cpu=False),
    }
    adapters = {"LoRA by hand": partial(trial.by_hand, adapters=True), "LoRA connect": partial(trial.connect, True)}
    streamed = {"connect, stream": partial(trial.connect, stream=True)}
    results: dict[str, list] = {}
    for k in range(trial.given.rounds):
        ways = list({**usual, **adapters, **(streamed if k == 0 else {})}.items())
        for name, way in ways[:: -1 if k % 2 else 1]:
            results.setdefault(name, []).append(trial.run(way))
            print(name, *results[name][-1], flush=True)
    steps = {name: statistics.median(step for step, _ in runs) for name, runs in results.items()}
    peaks = {name: max(peak for _, peak in runs) for name, runs in results.items()}
    for name in results:
        plain = "LoRA by hand" if name.startswith("LoRA") else "by hand"
        found[name] = {
            "ms per step": round(steps[name], 2),
            "of the step by hand": round(steps[name] / steps[plain], 3),
        }
        if peaks[plain]:
            found[name] |= {
                "peak, GB": round(peaks[name] / 1e9, 3),
                "of the memory by hand": round(peaks[name] / peaks[plain], 4),
                "vectors beyond by hand": round((peaks[name] - peaks[plain]) / vector, 3),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=["float32", "bfloat16"], default="float32")
    for name, usual in (("steps", 18), ("rounds", 3), ("batch", 4), ("length", 512)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.steps, given.rounds, given.batch, given.length = 6, 2, 2, 16
    device = torch.device("cuda" if torch.cuda.is_available() and not given.tiny else "cpu")
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU: memory is not measured"
    found |= {"device": name, "tokens per batch": given.batch * given.length}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found |= measured(Trial(given, device))
    found["slower"] = sorted({str(w.message) for w in heard if issubclass(w.category, tw.SlowPathWarning)})
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
