"""Kinds of batches: how they are made up, what their targets are, and what gives them."""

import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from differential.kind import BATCHES, SIZES, Base, classify, generator, kind, shaped, tanh_mlp, tokens, vectors
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import thalweg as tw

batch = partial(kind, table=BATCHES)
REST = ("fit", "connect", "scan", "walk", "ensemble")  # calls that go through the data of a network without batch norm


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(1).gather(1, labels[:, None])[:, 0]


def called(inputs: Callable[[Any], Any], targets: Callable[[Any], Any]) -> Any:
    """Losses, outputs and targets of a network that is called with what `inputs` takes out of a batch."""

    def both(net: nn.Module, item: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits, labels = net(inputs(item)), targets(item)
        return cross_entropy(logits, labels), logits, labels

    return both


def own_task(both: Any) -> Any:
    """A user's task for batches that the built-in ones cannot read."""
    task = tw.Task(cross_entropy, lambda net, item: both(net, item)[1:])
    return {"task": lambda module: task, "both": both}


def turned(turn: Callable[..., Any], source: Callable[[], list[Any]] = vectors) -> Callable[[], list[Any]]:
    return lambda: [turn(*item) for item in source()]


class Keyed(Base):
    """Takes its input by name."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features)


def keyed(key: str) -> dict[str, Any]:
    both = called(lambda item: item["features"], lambda item: item[key])
    return {"batches": turned(lambda x, y: {"features": x, key: y}), "both": both}


# How a batch is made up

batch("tuple")(tanh_mlp)
batch("list", batches=turned(lambda x, y: [x, y]))(tanh_mlp)
for label in ("labels", "label", "targets", "target", "y"):
    batch(f"dict_with_{label}", **keyed(label))(Keyed)
batch("dict_without_labels", refused=dict.fromkeys(REST, "labels"), batches=turned(lambda x, y: {"features": x}))(Keyed)
batch("ordered_dict", **keyed("y") | {"batches": turned(lambda x, y: OrderedDict(features=x, y=y))})(Keyed)
batch("user_dict", **keyed("y") | {"batches": turned(lambda x, y: UserDict(features=x, y=y))})(Keyed)
batch("read_only_mapping", **keyed("y") | {"batches": turned(lambda x, y: MappingProxyType({"features": x, "y": y}))})(
    Keyed
)

Pair = namedtuple("Pair", "features labels")
batch("namedtuple", batches=turned(Pair))(tanh_mlp)


@dataclass
class Record:
    features: Tensor
    wanted: Tensor
    name: str = "record"


records = own_task(called(lambda item: item.features, lambda item: item.wanted))
batch("dataclass", batches=turned(Record), **records)(tanh_mlp)
batch("dataclass_without_task", refused=dict.fromkeys(REST, "form"), batches=turned(Record))(tanh_mlp)


class Movable:
    def __init__(self, features: Tensor, wanted: Tensor) -> None:
        self.features, self.wanted = features, wanted

    def to(self, device: Any) -> "Movable":
        return Movable(self.features.to(device), self.wanted.to(device))


batch("object_with_to", batches=turned(Movable), **records)(tanh_mlp)


def arrays() -> list[Any]:
    return [(x.numpy(), y.numpy()) for x, y in vectors()]


from_arrays = own_task(called(lambda item: torch.from_numpy(item[0]), lambda item: torch.from_numpy(item[1])))
batch("numpy_arrays", batches=arrays, **from_arrays)(tanh_mlp)
batch("numpy_arrays_without_task", batches=arrays, refused=dict.fromkeys(REST, "arrays"))(tanh_mlp)
batch("tensor_alone", batches=turned(lambda x, y: x), refused=dict.fromkeys(REST, "form"))(tanh_mlp)


class Several(Base):
    def forward(self, x: Tensor, scale: Any, shift: Any = None) -> Tensor:
        return super().forward(x * scale if shift is None else x * scale + shift)


batch("several_inputs", batches=turned(lambda x, y: (x, x.flip(0), y)))(Several)
batch("scalar_beside_tensors", batches=turned(lambda x, y: (x, 0.5, y)))(Several)
batch("none_beside_tensors", batches=turned(lambda x, y: (x, 2, None, y)))(Several)
named = own_task(called(lambda item: item["x"], lambda item: item["y"]))
batch("strings_beside_tensors", batches=turned(lambda x, y: {"x": x, "y": y, "ids": ["a"] * len(y)}), **named)(tanh_mlp)
nested = own_task(called(lambda item: item["in"]["x"][0], lambda item: item["out"][0]))
batch("nested", batches=turned(lambda x, y: {"in": {"x": [x, "raw"]}, "out": (y,)}), **nested)(tanh_mlp)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x, self.weight)


batch("sparse_inputs", batches=turned(lambda x, y: (x.to_sparse(), y)))(Sparse)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: PackedSequence) -> Tensor:
        return self.head(self.lstm(x)[1][0][0])


def packed(x: Tensor, y: Tensor) -> Any:
    return pack_padded_sequence(x, [3] * (len(x) - 1) + [1], batch_first=True), y


batch("packed_sequence", batches=turned(packed, shaped(3, 4)))(Packed)
batch("integer_inputs", batches=tokens)(lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3)))
batch("inputs_not_contiguous", batches=turned(lambda x, y: (x.repeat(1, 2)[:, ::2], y.repeat_interleave(2)[::2])))(
    tanh_mlp
)
batch("inputs_that_require_gradients", batches=turned(lambda x, y: (x.requires_grad_(), y)))(tanh_mlp)
batch("inputs_of_another_precision", batches=turned(lambda x, y: (x.float(), y)), refused=dict.fromkeys(REST, "dtype"))(
    tanh_mlp
)
batch("inputs_on_meta", batches=turned(lambda x, y: (x.to("meta"), y)), refused=dict.fromkeys(REST, "meta"))(tanh_mlp)
batch("inputs_without_dimension", batches=turned(lambda x, y: (x[0, 0], y[0])), refused=dict.fromkeys(REST, "shape"))(
    tanh_mlp
)


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def spoiled(value: float) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        found = vectors()
        found[1][0][2, 1] = value
        return found

    return make


TRAINING = dict.fromkeys(("fit", "connect", "walk"), "values")  # a scan warns, and says NaN where it is NaN
NO_MEAN = TRAINING | {"ensemble": "values"}
batch("nan_in_inputs", batches=spoiled(float("nan")), refused=NO_MEAN, around=lambda module: quiet())(tanh_mlp)
batch("infinity_in_inputs", batches=spoiled(float("inf")), refused=TRAINING, around=lambda module: quiet())(tanh_mlp)


# What the targets are


def typed(dtype: torch.dtype) -> dict[str, Any]:
    def both(net: nn.Module, item: Any) -> tuple[Tensor, Tensor, Tensor]:
        losses, logits, _ = classify()(net, (item[0], item[1].long()))
        return losses, logits, item[1]

    return {"batches": turned(lambda x, y: (x, y.to(dtype))), "both": both}


for dtype in (torch.int32, torch.uint8, torch.int16, torch.int8):
    batch(f"labels_{str(dtype).removeprefix('torch.')}", **typed(dtype))(tanh_mlp)


def counted(net: nn.Module, item: Any) -> tuple[Tensor, Tensor, Tensor]:
    """One loss for each label that is not -100; classes in dimension 1."""
    logits, labels = net(item[0]), item[1]
    picked = logits.log_softmax(1).gather(1, labels.clamp_min(0)[:, None])[:, 0]
    return -picked[labels != -100], logits, labels


def ignoring(x: Tensor, y: Tensor) -> Any:
    return x, torch.where(torch.arange(y.numel()).reshape(y.shape) % 3 == 1, -100, y)


batch("labels_that_do_not_count", batches=turned(ignoring), both=counted)(tanh_mlp)


def maps() -> list[Any]:
    g = generator()
    return [(torch.randn(n, 2, 4, 4, generator=g).double(), torch.randint(3, (n, 4, 4), generator=g)) for n in SIZES]


def pixels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 3, 1))


batch("segmentation", batches=maps, both=counted)(pixels)
batch("segmentation_with_pixels_that_do_not_count", batches=turned(ignoring, maps), both=counted)(pixels)


def against(net: nn.Module, item: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy against probabilities."""
    logits = net(item[0])
    return -(item[1] * logits.log_softmax(1)).sum(1), logits, item[1]


def hot(x: Tensor, y: Tensor) -> Any:
    return x, torch.eye(3)[y].double()


batch("one_hot", batches=turned(hot), both=against)(tanh_mlp)
batch("one_hot_whole_numbers", batches=turned(lambda x, y: (x, hot(x, y)[1].long())), both=against)(tanh_mlp)
batch("soft_labels", batches=turned(lambda x, y: (x, 0.7 * hot(x, y)[1] + 0.1)), both=against)(tanh_mlp)
batch("labels_out_of_range", batches=turned(lambda x, y: (x, y + 1)), refused=dict.fromkeys(REST, "range"))(tanh_mlp)
batch("labels_in_a_column", batches=turned(lambda x, y: (x, y[:, None])), refused=dict.fromkeys(REST, "shape"))(
    tanh_mlp
)


def squared(net: nn.Module, item: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = net(item[0])
    losses = (outputs - item[1]).square()
    return losses if losses.ndim == 1 else losses.mean(1), outputs, item[1]


regressed = {"both": squared, "task": lambda module: tw.regression(), "probabilities": lambda outputs: outputs}
batch("regression", batches=turned(lambda x, y: (x, x[:, :3])), **regressed)(tanh_mlp)
batch("regression_to_whole_numbers", batches=turned(lambda x, y: (x, hot(x, y)[1].long())), **regressed)(tanh_mlp)
batch("regression_of_one_number", batches=turned(lambda x, y: (x, y.double())), **regressed)(
    lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
)
batch("regression_of_other_shapes", batches=turned(lambda x, y: (x, y.double())), refused=dict.fromkeys(REST, "shape"),
      task=lambda module: tw.regression())(tanh_mlp)  # fmt: skip


# What gives the batches


def first(*counts: int) -> Callable[[], list[Any]]:
    return lambda: [(x[:n], y[:n]) for (x, y), n in zip(vectors(), counts, strict=True)]


def normed() -> nn.Module:
    """With batch norm, so that every call goes through the data."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


SINGLE = dict.fromkeys(("fit", "connect", "scan", "walk", "bn_batches"), "single")
batch("batch_of_one", batches=first(1, 4, 2))(tanh_mlp)
batch("batch_of_one_with_batch_norm", batches=first(1, 4, 2), refused=SINGLE)(normed)
EMPTY = dict.fromkeys(("fit", "connect", "walk"), "empty")
batch("empty_last_batch", batches=first(6, 6, 0), refused=EMPTY)(tanh_mlp)
batch("no_batches", batches=list, refused="empty")(normed)


def dataset() -> TensorDataset:
    return TensorDataset(*(torch.cat(part) for part in zip(*vectors(), strict=True)))


def loader(**how: Any) -> Callable[[], DataLoader[Any]]:
    return lambda: DataLoader(dataset(), **{"batch_size": 4, **how})


def weighted() -> DataLoader[Any]:
    return loader(sampler=WeightedRandomSampler([1.0, 2.0, 3.0] * 5, 10, generator=None))()


def by_name(items: list[Any]) -> dict[str, Tensor]:
    return {"features": torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}


class Doubled(Dataset[Any]):
    """Random numbers in __getitem__, as of an augmentation."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> Any:
        x, y = dataset()[i]
        return x + 0.1 * torch.randn(4).double() + 0.01 * np.random.rand(), y


SHARD = 7  # more than a batch, so that what is loaded for the first one stays


class LastShard(Dataset[Any]):
    """Keeps the part that it has loaded last, by its number; a user has looked at one example."""

    def __init__(self) -> None:
        self.number, self.shard = -1, torch.zeros(0)
        self[0]

    def __len__(self) -> int:
        return sum(SIZES)

    def __getitem__(self, i: int) -> Any:
        if i // SHARD != self.number:
            self.number = i // SHARD
            self.shard = dataset().tensors[0][SHARD * self.number : SHARD * self.number + SHARD].clone()
        return self.shard[i % SHARD], dataset().tensors[1][i]


class RecentShards(LastShard):
    """Keeps two of them, and the order in which they were used."""

    def __init__(self) -> None:
        self.shards: dict[int, Tensor] = {}
        self.order: list[int] = []
        self[0]

    def __getitem__(self, i: int) -> Any:
        number = i // SHARD
        if number in self.shards:
            self.order.remove(number)
        else:
            self.shards[number] = dataset().tensors[0][SHARD * number : SHARD * number + SHARD].clone()
            if len(self.order) == 2:
                del self.shards[self.order.pop(0)]
        self.order.append(number)
        return self.shards[number][i % SHARD], dataset().tensors[1][i]


def in_batches(data: type[Dataset[Any]]) -> Callable[[], Any]:
    return lambda: DataLoader(data(), batch_size=6)


batch("last_shard", given=in_batches(LastShard))(tanh_mlp)
batch("recent_shards", given=in_batches(RecentShards))(tanh_mlp)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(dataset())


class CountedStream(Stream):
    def __len__(self) -> int:
        return len(dataset())


batch("loader", batches=loader())(tanh_mlp)
batch("loader_shuffling", batches=loader(shuffle=True))(tanh_mlp)
batch("loader_with_a_generator", batches=lambda: loader(shuffle=True, generator=torch.Generator())())(tanh_mlp)
batch("loader_with_workers", batches=loader(num_workers=1))(tanh_mlp)
batch("loader_with_a_sampler", batches=weighted)(tanh_mlp)
picked = [[0, 1, 2], [3, 5], [4, 8, 9]]
batch("loader_with_a_batch_sampler", batches=lambda: DataLoader(dataset(), batch_sampler=picked))(tanh_mlp)
batch("loader_that_drops_the_last", batches=loader(drop_last=True))(tanh_mlp)
batch("loader_with_a_collate", **keyed("labels") | {"batches": loader(collate_fn=by_name)})(Keyed)
batch("loader_of_random_augmentation", batches=lambda: DataLoader(Doubled(), batch_size=4))(tanh_mlp)
batch("loader_of_a_stream", batches=lambda: DataLoader(Stream(), batch_size=4), refused="length")(normed)
batch("loader_of_a_stream_with_length", batches=lambda: DataLoader(CountedStream(), batch_size=4))(tanh_mlp)
batch("data_set_alone", batches=dataset, refused="batches")(normed)
batch("iterator", batches=lambda: iter(vectors()), refused="length")(normed)


class Given:
    """A user's own iterable, which may give something else than its length says."""

    def __init__(self, promised: int = 3, given: int = 3, turns: bool = False) -> None:
        self.promised, self.given, self.turns, self.passes = promised, given, turns, 0

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        found = [*vectors(), *vectors()][: self.given]
        yield from found[:: -1 if self.turns and self.passes % 2 else 1]


batch("own_iterable", batches=Given)(tanh_mlp)
batch("fewer_than_promised", batches=lambda: Given(3, 2), refused="length")(normed)
batch("more_than_promised", batches=lambda: Given(3, 4), refused="length")(normed)
batch("another_order_in_each_pass", batches=lambda: Given(turns=True), refused={"ensemble": "order"})(tanh_mlp)


class SameMemory(Given):
    """A loader that writes every batch into the same memory, as fast ones do."""

    def __iter__(self) -> Iterator[Any]:
        memory = [torch.empty_like(tensor) for tensor in vectors()[0]]
        for batch in super().__iter__():
            yield tuple(own[: len(tensor)].copy_(tensor) for own, tensor in zip(memory, batch, strict=True))


batch("memory_used_again", given=SameMemory)(tanh_mlp)
