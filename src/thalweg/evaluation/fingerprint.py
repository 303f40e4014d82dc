"""The fingerprint of a call: what it would compute, as facts that are compared when its run folder is used again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import islice
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ..batches import Batches, count, tensors_in, to_device
from ..object_state import modules_in
from ..results.scan import STRAIGHT
from ..runtime.compute import Compute, shards_of
from ..runtime.rng import seeded, undisturbed
from ..runtime.transfer import defining_class
from ..store import facts
from ..store.content import Content, digest_of
from ..store.files import gathered
from ..tasks import Task
from ..weightspace.curves import Bezier, Curve, PolyChain, Segment
from ..weightspace.layout import batch_norms
from ..weightspace.probe import Probe, probe_at
from ..weightspace.state import Contents
from ..weightspace.weights import Weights
from .metrics import Metrics, averaged

Facts = dict[str, Any]
Quantities = dict[str, list[float]]
SMALL = 64 << 20  # up to this many bytes, data in memory are hashed completely
SAMPLE = 4  # batches of other data that are hashed, including the first and the last
COURSE = tuple(i / 8 for i in range(9))  # values of t at which a curve's coefficients are compared
ROUNDING, COARSE = {torch.float64: 1e-9, torch.float32: 1e-5}, 2e-3  # between machines; with a GPU or half precision
PROJECTED = 1 << 20  # values of one quantity that a projection uses
LOADING = ("collate_fn", "generator", "timeout", "worker_init_fn", "multiprocessing_context")


def data_fingerprint(batches: Batches, name: str) -> tuple[Facts, Any]:
    """The facts of a data set, by content, and its first batch; the random state of training is not affected."""
    length = count(batches, name)
    ours = ("__iter__", "draws", "make_batch")
    with undisturbed(batches, seed=0), catch_warnings(action="ignore"):  # the call itself will show them
        if all(defining_class(batches, method).__module__.startswith("thalweg.paper.data.") for method in ours):
            parts, first = _on_device(batches)
        elif isinstance(batches, list | tuple) and type(batches).__iter__ in (list.__iter__, tuple.__iter__):
            parts, first = _in_memory(batches), batches[0]
        elif (
            isinstance(batches, DataLoader)
            and type(batches).__iter__ is DataLoader.__iter__
            and not isinstance(batches.dataset, IterableDataset)
        ):
            parts, first = _of_loader(batches)
        else:
            parts, first = _of_one_pass(batches, length)
    return {name: facts.data(length, parts)}, first


def _on_device(batches: Any) -> tuple[dict[str, str], Any]:
    """All of the data in `DeviceBatches` and `TokenBatches`; the order would depend on the device that shuffles."""
    clean = batches.clean() if hasattr(batches, "clean") else batches
    return {"the content": digest_of(batches.contents)}, next(iter(clean))


def _in_memory(batches: Sequence[Any]) -> dict[str, str]:
    """All of them if they are small."""
    found, size = {}, 0
    for k in _visits(len(batches)):
        if size <= SMALL:
            content = Content()
            content.add(batches[k])
            found[k], size = content.digest(), size + content.size
    return _parts(found)


def _of_loader(loader: DataLoader[Any]) -> tuple[dict[str, str], Any]:
    """Every index from the sampler, and what the data set holds at some of them, loaded by a worker if there are any:
    data sets may open files there, and such handles do not survive a fork. Their number counts only if other
    workers load something else, as where they draw random numbers.
    """
    order = list(islice(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, len(loader) + 1))
    numbers = _visits(len(order))[:SAMPLE] if order else []
    chosen, single = [order[k] for k in numbers], loader.batch_sampler is None
    how: dict[str, Any] = {"sampler": chosen, "batch_size": None} if single else {"batch_sampler": chosen}
    how |= {name: getattr(loader, name) for name in LOADING}
    first, *others = (
        DataLoader(loader.dataset, num_workers=workers, **how)
        for workers in sorted({min(loader.num_workers, most) for most in (1, SAMPLE)})
    )
    loaded = dict(zip(numbers, first, strict=True))
    digests = {k: digest_of(batch) for k, batch in loaded.items()}
    parts = {"the order": digest_of(order), **_parts(digests)}
    if any(list(digests.values()) != list(map(digest_of, other)) for other in others):  # each worker draws its own
        parts["the number of workers"] = str(loader.num_workers)
    return parts, loaded.get(0)


def _of_one_pass(batches: Batches, length: int) -> tuple[dict[str, str], Any]:
    wanted, found, first = set(_visits(length)[: 16 * SAMPLE]), {}, None
    for k, batch in enumerate(islice(batches, length)):
        if k in wanted:
            found[k] = digest_of(batch)
        first = batch if k == 0 else first
    return _parts(found), first


def _visits(length: int) -> list[int]:
    """The first, the last, and the others in a fixed random order."""
    others = torch.randperm(max(length - 2, 0), generator=torch.Generator().manual_seed(length), device="cpu")
    return [0, *([length - 1] if length > 1 else []), *(others + 1).tolist()]


def _parts(found: Mapping[int, str]) -> dict[str, str]:
    """Hashes of some batches by number: the first, the last, and all of them as one."""
    if not found:  # batches with a length but no items, which the call itself refuses
        return {}
    first, *others = (found[k] for k in sorted(found))
    return {
        "the first batch": first,
        "the last batch": others[-1] if others else first,
        "a batch in the middle": digest_of(others[:-1]),
    }


def first_pass(
    module: nn.Module, weights: Weights, task: Task, batch: Any, compute: Compute, name: str, trains: bool = False
) -> Facts:
    """What a private copy of the network computes for a batch: in eval mode loss, outputs, and metrics if they are
    measured; if it is to be trained, in training mode loss and gradient.

    A quantity that cannot be computed, or differs the second time, is left out: the call itself will raise, or cannot
    be compared.
    """
    device, shards = next(module.parameters()).device.type, shards_of(module)
    if shards is not None:
        batch = shards.first_example(batch)
    within = rounding(weights.layout.dtype, exact=device == "cpu" and compute.precision == "fp32")
    both = [_evaluate(module, weights, task, batch, compute, trains) for _ in range(2)]
    evaluated, trained = (
        {key: one[key] for key in one if key in two and facts.near(one[key], two[key], within)}
        for one, two in zip(*both, strict=True)
    )
    in_training = {f"{name} in training mode": facts.numbers(trained, within, on=device)} if trains else {}
    return {name: facts.numbers(evaluated, within), **in_training}


def rounding(dtype: torch.dtype, exact: bool) -> float:
    """How far the same quantity may differ between machines, relative to its scale."""
    return ROUNDING.get(dtype, COARSE) if exact else COARSE


def measured_fingerprint(
    module: nn.Module, weights: Weights, task: Task, data: Mapping[str, Batches], compute: Compute
) -> Facts:
    """Of data sets to be measured: their contents, and what the network computes for the first batch of each."""
    found: Facts = {}
    for name, batches in data.items():
        own, first = data_fingerprint(batches, f"the data '{name}'")
        found |= own | first_pass(module, weights, task, first, compute, f"the first batch of '{name}'")
    return found


def bn_fingerprint(batches: Batches | None) -> Facts:
    return {} if batches is None else data_fingerprint(batches, "the data of bn_batches")[0]


def scan_fingerprint(
    module: nn.Module,
    weights: Weights,
    task: Task,
    data: Mapping[str, Batches],
    weight_decay: float,
    bn_batches: Batches | None,
    compute: Compute,
) -> Facts:
    """How points are measured, whichever they are."""
    return {
        **{"precision": compute.precision, "weight_decay": weight_decay},
        **{"data": sorted(map(str, data)), "units": dict(task.units)},
        **measured_fingerprint(module, weights, task, data, compute),
        **bn_fingerprint(bn_batches),
    }


def _evaluate(
    module: nn.Module, weights: Weights, task: Task, batch: Any, compute: Compute, trains: bool
) -> tuple[Quantities, Quantities]:
    """In eval mode, and in training mode if it is to be trained; each with its own batch, which a loss may write to."""
    with undisturbed(task, whole=True), unwritten(task), catch_warnings(action="ignore"):
        probe = probe_at(module, weights, compute)
        probe.module.eval()
        for _, layer in () if weights.has_statistics else batch_norms(probe.module):
            layer.train()  # rather than use the statistics of another network
        with seeded(0), torch.no_grad(), compute.casting(probe.device):
            evaluated = _tried(_evaluated(probe, task, batch, not trains))
        if not trains:
            return evaluated, {}
        probe.module.train()
        with seeded(0), torch.enable_grad(), compute.casting(probe.device):
            return evaluated, _tried(_trained(probe, task, batch))


def _tried(found: Iterator[tuple[str, list[float]]]) -> Quantities:
    """What is found before user code fails; the call itself will run it again and report the error."""
    quantities: Quantities = {}
    with suppress(Exception):
        quantities.update(found)
    return quantities


def _evaluated(probe: Probe, task: Task, batch: Any, predicts: bool) -> Iterator[tuple[str, list[float]]]:
    outputs, targets = task.predictions(probe.module, _copied(batch, probe.device))
    found = {"output": summary([*Contents(outputs).tensors.values()])}  # at once, since a loss may write into it
    found |= _tried(_predicted(task, outputs, targets)) if predicts else {}
    with suppress(Exception):
        yield "loss", summary([task.loss(outputs, targets)])
    yield from found.items()


def _predicted(task: Task, outputs: Any, targets: Any) -> Iterator[tuple[str, list[float]]]:
    yield from ((f"metric '{name}'", summary([found])) for name, found in Metrics(task)(outputs, targets).items())
    yield "prediction", summary([averaged(task, outputs, targets)])


def _trained(probe: Probe, task: Task, batch: Any) -> Iterator[tuple[str, list[float]]]:
    before = _untrained(probe)
    values = task.loss(*task.predictions(probe.module, _copied(batch, probe.device)))
    yield "loss", summary([values])
    for key, (mean, projection, size) in _untrained(probe).items():
        yield f"effect on {key}", [mean - before[key][0], projection - before[key][1], size]
    _, projection, size = summary([part for part in probe.gradients(values.mean()) if part is not None])
    yield "gradient", [size, projection, 100 * size]  # rounding changes it more than the loss


def _copied(batch: Any, device: torch.device) -> Any:
    """Of tensors with a graph, only the values; what is in no way copied, such as a generator, raises."""
    values = {id(t): t.detach().clone().requires_grad_() for t in tensors_in(batch) if not t.is_leaf}
    return to_device(deepcopy(batch, values), device)


def _untrained(probe: Probe) -> Quantities:
    """What a pass in training mode may write by itself: statistics, moving averages, a teacher."""
    frozen = [part for part in probe.module.parameters() if not part.requires_grad]
    return {"buffers": summary([*probe.module.buffers()]), "frozen parameters": summary(frozen)}


def summary(tensors: Sequence[Tensor]) -> list[float]:
    """Their mean, a random projection, and their root mean square."""
    every = max(1, sum(tensor.numel() for tensor in tensors) // PROJECTED)
    kept = [gathered(tensor.detach()).reshape(-1)[::every] for tensor in tensors if tensor.is_floating_point()]
    values = (
        torch.cat([part.cpu().double() for part in kept]) if kept else torch.zeros(1, dtype=torch.float64, device="cpu")
    )
    signs = 2 * torch.randint(2, values.shape, generator=torch.Generator().manual_seed(0), device="cpu").double() - 1
    return [float(values.mean()), float(signs @ values / len(values) ** 0.5), float(values.square().mean().sqrt())]


def curve_fingerprint(curve: Curve) -> Facts:
    """The kind of curve, its control points, its attributes, and coefficients of a user's own kind."""
    bends = [f"bend {k} of the curve" for k in range(1, len(curve.points) - 1)]
    names = ["the start of the curve", *bends, "the end of the curve"]
    return {
        "the curve's": facts.table(_kind_of(curve)),
        "the points of the curve": facts.sequence(
            [point.digest() for point in curve.points], "the curve", "bend", names, fixed=2
        ),
    }


def _kind_of(curve: Curve) -> dict[str, Any]:
    kind, own = type(curve), {key: value for key, value in vars(curve).items() if key not in ("points", "gram")}
    if kind not in (Segment, PolyChain, Bezier):
        own["course"] = [[round(c, 9) for c in curve.checked_coefficients(t).tolist()] for t in COURSE]
    return {"class": f"{kind.__module__}.{kind.__qualname__}", **own}


def curve_identity(curve: Curve) -> list[str]:
    """What is the same wherever a curve is scanned or drawn, whatever it is called: its kind and its control points."""
    kind = STRAIGHT if type(curve) is Segment else digest_of(_kind_of(curve))
    return [kind, *points_identity(curve.points)]


def points_identity(points: Sequence[Weights]) -> list[str]:
    """Hashes of weights alone: their batch-norm statistics may be those of a file, or recomputed."""
    return [point.bare().digest() for point in points]


def points_fingerprint(points: Sequence[Weights], owner: str) -> Facts:
    """The corners of a plane, or a list of weights."""
    names = [f"point {k} of the {owner}" for k in range(1, len(points) + 1)]
    return {"the points": facts.sequence([point.digest() for point in points], f"the {owner}", "point", names)}


@contextmanager
def unwritten(task: Task) -> Iterator[None]:
    """Undo changes to modules that a loss holds, such as a teacher that follows the network."""
    tables: list[dict[str, Any]] = [
        table for part in modules_in(task).values() for table in (part._parameters, part._buffers)
    ]
    kept = [(table, name, tensor) for table in tables for name, tensor in table.items() if tensor is not None]
    values = [tensor.detach().clone() for _, _, tensor in kept]
    try:
        yield
    finally:
        for (table, name, tensor), value in zip(kept, values, strict=True):
            table[name] = tensor
            tensor.data.copy_(value)
