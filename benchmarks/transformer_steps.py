"""Transformers on a CUDA GPU: `fit` and `connect` against a loop written by hand, with AdamW.

    python benchmarks/transformer_steps.py OUT.json [--models gpt2 llama bert vit] [--steps 60] [--rounds 5] [--compile]

For each model, in bf16 with AdamW and no decay of norms and biases: steps of an eager loop as one writes it, with
torch's fused AdamW, of `fit`, and of `connect` with one bend, each measured over whole runs of `--steps` updates on
batches in GPU memory, of which the first third, in which steps are captured, does not count. The three run one after
another in each round, in alternating order, after a round that does not count. Times are medians over the rounds;
ratios are medians of the ratios within each round, with the least and the greatest. `connect / fit` is a curve step
with AdamW against a plain one. `slower` is the warning if steps were not captured. Needs transformers, and no
downloads: weights are random. `--tiny` is for a CPU, and shows only that everything runs.
"""

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import torch
import transformers

import thalweg as tw
from thalweg.integrations.transformers import own_loss


def sizes(tiny):
    return {"hidden": 32, "layers": 2, "heads": 4, "batch": 4, "length": 16, "words": 100} if tiny else {
        "hidden": 384, "layers": 6, "heads": 6, "batch": 16, "length": 256, "words": 50257,
    }  # fmt: skip


def network(name, s):
    torch.manual_seed(0)
    inner = 4 * s["hidden"]
    common = {"hidden_size": s["hidden"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"]}
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=s["words"], n_embd=s["hidden"], n_layer=s["layers"], n_head=s["heads"], n_positions=s["length"],
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    if name == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=s["words"], intermediate_size=inner, **common)
        )
    if name == "bert":
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(vocab_size=s["words"], intermediate_size=inner, num_labels=4, **common)
        )
    # tiny, as timm calls it: 12 layers of 192
    own = {**common, **({} if s["hidden"] < 100 else {"hidden_size": 192, "num_hidden_layers": 12})}
    own["num_attention_heads"] = 4 if s["hidden"] < 100 else 3
    side = 32 if s["hidden"] < 100 else 224
    config = transformers.ViTConfig(image_size=side, intermediate_size=4 * own["hidden_size"], num_labels=10, **own)
    return transformers.ViTForImageClassification(config)


def batches(name, s, device, number=8):
    """Dict batches; those of BERT are padded."""
    g = torch.Generator().manual_seed(0)
    shape, found = (s["batch"], s["length"]), []
    for _ in range(number):
        tokens = torch.randint(1, s["words"], shape, generator=g)
        batch = {"input_ids": tokens, "labels": tokens.clone()}
        if name == "bert":
            long = torch.randint(s["length"] // 4, s["length"] + 1, (s["batch"], 1), generator=g)
            mask = (torch.arange(s["length"]) < long).long()
            batch = {"input_ids": tokens * mask, "attention_mask": mask}
            batch["labels"] = torch.randint(4, (s["batch"],), generator=g)
        if name == "vit":
            side = 32 if s["hidden"] < 100 else 224
            batch = {"pixel_values": torch.randn(4 * s["batch"], 3, side, side, generator=g)}
            batch["labels"] = torch.randint(10, (4 * s["batch"],), generator=g)
        found.append({key: value.to(device) for key, value in batch.items()})
    return found


def grouped(named, fused=None):
    matrices, rest = ([p for _, p in named if (p.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-4, fused=fused)


class Clocked(list):
    """The same batches in one epoch as long as the run; notes when the first third has been handed out, and the end."""

    def __init__(self, batches, steps, device):
        super().__init__(batches)
        self.steps, self.device, self.times = steps, device, (0.0, 0.0)

    def __len__(self):
        return self.steps

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def __iter__(self):
        for k in range(self.steps):
            if k == self.steps // 3:
                began = self.now()
            yield self[k % list.__len__(self)]
        self.times = began, self.now()  # of whole passes alone

    def per_step(self):
        first, last = self.times
        return 1000 * (last - first) / (self.steps - self.steps // 3)


def by_hand(model, data, device, autocasts=True):
    """An eager loop, as in most scripts, with torch's fastest AdamW; milliseconds per step."""
    model.train()
    optimizer = grouped([(name, p) for name, p in model.named_parameters() if p.requires_grad], fused=True)
    for batch in data:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocasts):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return data.per_step()


def measured(name, s, steps, rounds, device, compiled):
    model, data = network(name, s).to(device), Clocked(batches(name, s, device), steps, device)
    task = tw.classification() if name == "bert" else own_loss(model)
    settings = {"epochs": 1, "schedule": tw.WarmupCosine(1e-4, tw.Iterations(5)), "optimizer": grouped}
    settings |= {"compute": tw.Compute(precision="bf16", compile=compiled), "progress": False}
    ends = [tw.Weights.of(network(name, s).to(device)), tw.Weights.of(model)]
    ends[1] = tw.average([ends[1]])
    ends[1].vector.mul_(1.01)
    ways = {
        "by hand": lambda: by_hand(network(name, s).to(device), data, device),
        "fit": lambda: tw.fit(model, task, data, **settings) and data.per_step(),
        "connect": lambda: tw.connect(model, tw.Bezier(*ends), task, data, **settings) and data.per_step(),
    }
    times: dict = {way: [] for way in ways}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for k in range(rounds + 1):
            for way in list(ways)[:: 1 if k % 2 else -1]:
                times[way].append(ways[way]())
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        **{f"{way}, ms": round(statistics.median(values[1:]), 3) for way, values in times.items()},
        "fit / by hand": ratio(times["fit"], times["by hand"]),
        "connect / fit": ratio(times["connect"], times["fit"]),
        "slower": sorted({str(w.message) for w in heard if issubclass(w.category, tw.SlowPathWarning)}),
    }


def ratio(one, two):
    """Within each round but the first: median, least and greatest."""
    each = [a / b for a, b in zip(one[1:], two[1:], strict=True)]
    return [round(f(each), 3) for f in (statistics.median, min, max)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama", "bert", "vit"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="as `fit` and `connect` do by themselves in long runs")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not given.tiny else "cpu")
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "device": str(device)}
    for name in given.models:
        found[name] = measured(name, sizes(given.tiny), given.steps, given.rounds, device, given.compile)
        print(name, json.dumps(found[name], indent=1), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
