"""Small GPTs on Penn Treebank, fine-tuned from one start and from two: lines and curves between them, ensembles, soups.

$ python examples/penn_treebank.py --data ~/data     # six layers of 256 on all of the text, for a GPU
$ python examples/penn_treebank.py --data ~/data --tiny

A network is trained on the first three quarters of the training text; two copies of it, a and b, are then fine-tuned on
the last quarter, each in an order of its own. A third, c, is fine-tuned from another network. Between a and b, and
between a and c, we measure the straight line, and a Bezier curve trained on the whole text. Perplexity on 20,000 test
words:

    test perplexity         first        second     line, max    curve, max curve, middle      ensemble       average
    one start               103.5         104.0         104.0         104.0          83.3         101.7         102.7
    two starts              103.5         103.3        2227.8         103.5          83.6          94.6        2227.8

From one start, the networks can be averaged, but gain little from it. From two, there is a barrier between them, which
the curve goes around, and only their ensemble is much better than each. The greedy soup of all three is that of a and
b, 102.7. Fine-tuning on the last quarter made the networks worse: before, they had 98.5 and 98.1. The points in the
middle of the curves are the best, but were trained on the whole text for twenty more epochs, so that this is no fair
comparison. The learning rate is passed to AdamW alone, and `WarmupCosine(warmup=1)` scales it.

167 s, 2026-11-16: one NVIDIA H200 with other work on it, Python 3.12, torch 2.11.0. With `--tiny`, two layers of 64 on
100,000 words with a vocabulary of the 2,000 most frequent, 472 s on a CPU core: 123.0 and 123.2 from one start, the
line at most 123.2; from two starts the line 260.9, the curve 124.1, the ensemble 121.1.
"""

import argparse
import math
import time
import warnings
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import thalweg as tw

FULL = {"width": 256, "layers": 6, "length": 128, "dropout": 0.3, "lr": 1e-3}
FULL |= {"words": 929_000, "vocabulary": 10_000, "epochs": 20, "points": 21}
TINY = {"width": 64, "layers": 2, "length": 32, "dropout": 0.1, "lr": 2e-3}
TINY |= {"words": 100_000, "vocabulary": 2_000, "epochs": 8, "points": 11}
SCORED = 20_000  # test words; an ensemble holds a probability for each word of the vocabulary at each of them
BATCH = 32


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.before, self.between, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), max(width // 64, 1)
        self.mix, self.out, self.dropout = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(dropout)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), self.dropout)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        seen = nn.functional.scaled_dot_product_attention(*(p.transpose(1, 2) for p in parts), is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(-2)))
        return x + self.inner(self.between(x))


class GPT(nn.Module):
    """Words, positions, blocks; the last layer is tied to the first."""

    def __init__(self, scale: SimpleNamespace):
        super().__init__()
        self.words, self.places = nn.Embedding(scale.vocabulary, scale.width), nn.Embedding(scale.length, scale.width)
        self.blocks = nn.Sequential(*(Block(scale.width, scale.dropout) for _ in range(scale.layers)))
        self.norm, self.head = nn.LayerNorm(scale.width), nn.Linear(scale.width, scale.vocabulary, bias=False)
        self.dropout, self.head.weight = nn.Dropout(scale.dropout), self.words.weight
        for parameter in (self.words.weight, self.places.weight):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(self.dropout(x))))


def read(data: Path | None, vocabulary: int) -> dict[str, Tensor]:
    """Word numbers of the three parts, by frequency; rarer words share the last. Without data, Python's manual."""
    if data is not None:
        found = tw.data.ptb(data)
        return {name: getattr(found, name).clamp(max=vocabulary - 1) for name in ("train", "valid", "test")}
    text = "\n".join(topics.values()).lower().split()
    number = {word: k for k, (word, _) in enumerate(Counter(text).most_common())}
    numbers = torch.tensor([number[word] for word in text]).clamp(max=vocabulary - 1)
    cuts = (len(numbers) * 8 // 10, len(numbers) * 9 // 10)
    return dict(zip(("train", "valid", "test"), numbers.tensor_split(cuts), strict=True))


def batches(tokens: Tensor, scale: SimpleNamespace, shuffle: bool = False) -> DataLoader:
    """Pieces of `length` words, and for each word the next one."""
    pieces = tokens[: (len(tokens) - 1) // scale.length * scale.length + 1].unfold(0, scale.length + 1, scale.length)
    pairs = TensorDataset(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())
    return DataLoader(pairs, batch_size=BATCH, shuffle=shuffle, drop_last=shuffle)


def adamw(lr: float):
    """As transformers are usually trained: matrices decay, norms and biases do not. The rate is the optimizer's own."""

    def made(named):
        matrices, rest = ([p for _, p in named if (p.ndim > 1) == wide] for wide in (True, False))
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}], lr)

    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the text; without it, Python's manual is read")
    parser.add_argument("--tiny", action="store_true", help="a network and a part of the text for two CPU cores")
    parser.add_argument("--words", type=int, help="how much of the training text is read")
    parser.add_argument("--epochs", type=int, help="of the first training and of curves; fine-tuning takes half of it")
    parser.add_argument("--points", type=int, help="along each path; a plane has two thirds of it along each side")
    given = parser.parse_args()
    chosen = {name: value for name, value in vars(given).items() if value is not None}
    began, scale = time.perf_counter(), SimpleNamespace(**{**(TINY if given.tiny else FULL), **chosen})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = read(given.data, scale.vocabulary)
    text = parts["train"][: scale.words]
    first, second, whole = (
        batches(part, scale, shuffle=True) for part in (*text.tensor_split([len(text) * 3 // 4]), text)
    )
    valid, test = (batches(parts[name][: min(SCORED, scale.words // 4) + 1], scale) for name in ("valid", "test"))
    task = tw.language_modelling(padding=False)
    common = {"compute": tw.Compute(precision="bf16") if device.type == "cuda" else None}
    recipe = {"optimizer": adamw(scale.lr), "schedule": tw.WarmupCosine(warmup=1), "clip": 1.0, **common}

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return GPT(scale).to(device)

    # 1. Two networks that read the first three quarters of the text; from these, three that then read the last quarter.
    starts = {seed: tw.fit(network(seed), task, first, epochs=scale.epochs, seed=seed, **recipe) for seed in (1, 2)}

    def tuned(start: int, seed: int) -> tw.Weights:
        module = network(0)
        starts[start].load_into(module)
        return tw.fit(module, task, second, epochs=scale.epochs // 2, seed=seed, **recipe)

    a, b, c = tuned(1, 3), tuned(1, 4), tuned(2, 4)

    # 2. Between two of one start, and of two: the straight line, and a curve trained on the whole text.
    module, pairs, scans = network(0), {"one start": (a, b), "two starts": (a, c)}, {}
    for name, ends in pairs.items():
        curve = tw.connect(module, tw.Bezier(*ends), task, whole, epochs=scale.epochs, **recipe)
        for kind, path in {"line": tw.Segment(*ends), "curve": curve}.items():
            scans[f"{name}, {kind}"] = tw.scan(module, path, task, {"test": test}, points=scale.points, **common)
    perplexity = {name: torch.tensor(scan.values["test"]["data_loss"]).exp() for name, scan in scans.items()}

    # 3. Each pair: its ends, the line, the curve, both networks as an ensemble, and their average.
    columns = ("first", "second", "line, max", "curve, max", "curve, middle", "ensemble", "average")
    print(f"{'test perplexity':15}" + "".join(f"{column:>14}" for column in columns))
    for name, ends in pairs.items():
        line, along = (perplexity[f"{name}, {kind}"].tolist() for kind in ("line", "curve"))
        middle, together = scale.points // 2, math.exp(tw.Ensemble(module, list(ends)).score(task, test)["nll"])
        row = (line[0], line[-1], max(line), max(along), along[middle], together, line[middle])
        print(f"{name:15}" + "".join(f"{value:14.1f}" for value in row))
    with warnings.catch_warnings(action="ignore"):  # it says that c lies behind a barrier
        soup = tw.soup(module, {"a": a, "b": b, "c": c}, task, valid, metric="data_loss", **common)
    found = tw.scan(module, [starts[1], starts[2], a, b, c, soup], task, {"test": test}, **common)
    each = torch.tensor(found.values["test"]["data_loss"]).exp().tolist()
    print(f"before fine-tuning {each[0]:.1f} and {each[1]:.1f}; a {each[2]:.1f}, b {each[3]:.1f}, c {each[4]:.1f}")
    print(f"greedy soup of a, b and c, chosen on the validation text: {' and '.join(soup.members)}, {each[5]:.1f}")

    # 4. Along the paths, and in the plane of the curve between two starts.
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    along = {name: (scan.t, perplexity[name]) for name, scan in scans.items()}
    ax = tw.figures.lines(along, "t", "test perplexity", figure.subplots())
    ax.set_yscale("log")
    ticks = {"major_locator": LogLocator(subs=[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7]), "minor_locator": NullLocator()}
    ax.yaxis.set(**ticks, major_formatter="{x:.0f}")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    figure.savefig("penn_treebank_paths.png", dpi=150)
    plane, side = tw.Plane(a, c, curve.bends[0]), max(2 * scale.points // 3, 2)
    plane = tw.scan(module, plane, task, {"test": test}, grid=(side, side), overlay={"curve": curve}, **common)
    tw.figures.surface(plane).figure.savefig("penn_treebank_plane.png", dpi=150)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, {where}")


if __name__ == "__main__":
    main()
