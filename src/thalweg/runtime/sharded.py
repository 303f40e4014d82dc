"""Networks of which every rank holds a shard, with `fully_shard` of torch: how they are made, placed, trained, measured
and checkpointed.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from ..batches import Batches
from ..error_notes import explained
from ..errors import ThalwegError, during
from ..evaluation.measure import Measurement
from ..generators import same_randomness
from ..store.runs import STATE, Run, State
from ..tasks import Number, Task
from ..training.step import Step
from ..weightspace.checkpoint import PART
from ..weightspace.layout import Layout, named_buffers, named_parameters, named_statistics, tied_names
from ..weightspace.probe import Probe
from ..weightspace.weights import Weights, check_state
from .compute import Compute, Processes, StoredResult, present
from .distributed import Ranks, RankStep, collective
from .shards import Division, ShardedLayout, discard_shards, read_shards

T = TypeVar("T")


def sharded(make: Callable[[], nn.Module]) -> nn.Module:
    """A network of which every rank holds a shard, for networks that are too large for one GPU.

    Examples:
        >>> import thalweg as tw
        >>> from torch.distributed.fsdp import fully_shard
        >>> def make():
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        ...     return fully_shard(model)
        >>> def main():  # in a script that torchrun starts
        ...     with tw.distributed():
        ...         network = tw.sharded(make)
        ...         a, b = (tw.Weights.load(path, network) for path in ("a", "b"))
        ...         curve = tw.connect(network, tw.Bezier(a, b), tw.classification(), batches, epochs=10, lr=0.1)
        ...         curve.save("curve")

    `fit`, `connect` and `scan` take it like any other module. Its `Weights`, and curves through them, hold this rank's
    shards; saving them is done by all ranks together, and the files can be read as whole ones, or by another number of
    ranks. A module under `fully_shard` cannot be copied, so every call makes a network of its own with `make`.

    Args:
        make: Makes the network, calls `fully_shard` on it, and on its parts as it likes, and returns it. Large networks
            are made on the meta device, and initialised after `to_empty`.

    Returns:
        What `make` returns.
    """
    return Shards(make).made()


@dataclass(frozen=True)
class Shards:
    """How a network in shards is handled; an attribute of the network.

    Attributes:
        make: Makes another one.
    """

    make: Callable[[], nn.Module]

    def made(self) -> nn.Module:
        with during("making a network in shards"):
            module = self.make()
        if not isinstance(module, FSDPModule):
            raise ThalwegError(
                "a network in shards is made by a function that calls fully_shard on it; this one returned a "
                f"{type(module).__name__} without: leave `sharded` out, or call fully_shard"
            )
        object.__setattr__(module, "_thalweg_shards", self)
        first, *others = map(Layout.from_dict, present.get().processes.gather(self.layout(module).to_dict()))
        for rank, other in enumerate(others, start=1):
            first.check(other, "process 0", f"process {rank}")
        module.register_forward_hook(_reshard_without_gradient)
        return module

    def layout(self, module: nn.Module) -> ShardedLayout:
        """Which shards this rank holds."""
        reshard(module)
        parameters = named_parameters(module)
        divisions = {name: _division(name, parameter) for name, parameter in parameters.items()}
        moving = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        _check(moving, named_statistics(module))
        one = next(iter(moving.values()))
        return ShardedLayout(
            names=tuple(moving),
            shapes=tuple(divisions[name].shape for name in moving),
            dtype=one.dtype,
            frozen=tuple(name for name in parameters if name not in moving),
            aliases=tuple(tied_names(module).items()),
            mesh=one.device_mesh,  # type: ignore[attr-defined]
            divisions=divisions,
        )

    def probe(self, module: nn.Module, weights: Weights | None) -> "ShardedProbe":
        return ShardedProbe(self, module, weights)

    def first_example(self, batch: Any) -> Any:
        """What a folder remembers of a batch; all of it may be too much for one rank."""
        return Ranks(0, sys.maxsize).share(batch)[0]

    def resumed(
        self,
        run: Run,
        finished: bool,
        asked: Mapping[str, Any],
        result: StoredResult[T],
        make: Callable[[Run | None], T],
        ranks: Processes,
    ) -> T:
        """The result of a training with a folder, which all ranks read and write.

        Args:
            run: The folder.
            finished: Whether it holds the result.
            asked: The arguments of the call.
            result: How a result is stored.
            make: Computes the result.
            ranks: Who make the call.
        """
        run.folder = ranks.once(lambda: run.folder)  # on the command line others have one of their own
        path, module = run.folder / result.file, asked["module"]
        if finished:
            ranks.once(lambda: discard_shards(run.folder / STATE))
            kind: Any = type(asked["curve"]) if "curve" in asked else Weights
            return kind.load(path, module)
        made = make(ShardedRun(run, self.layout(module), ranks))
        result.save(made, run.folder)
        ranks.once(lambda: run.finish(lambda folder: discard_shards(folder / STATE)))
        return made


def reshard(module: nn.Module) -> None:
    """Let go of what a forward pass has gathered, so that parameters are this rank's shards again."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _reshard_without_gradient(module: nn.Module, args: Any, output: Any) -> None:
    """What is gathered for a backward pass is kept until then, but there may be none."""
    if not torch.is_grad_enabled():
        reshard(module)


def _division(name: str, parameter: nn.Parameter) -> Division:
    if not isinstance(parameter, DTensor):
        raise ThalwegError(f"every parameter must be in shards, and '{name}' is not: call fully_shard on all of it")
    cuts, mesh, shard = parameter.placements, parameter.device_mesh, parameter.to_local()
    if len(cuts) != 1 or not isinstance(cuts[0], Shard):
        raise ThalwegError(
            f"a network must be cut along one dimension of ranks, but '{name}' is {cuts}: leave other dimensions "
            "of the mesh (replicas, tensor parallelism) out"
        )
    if shard.is_meta:
        raise ThalwegError(
            f"'{name}' has no values, being on the meta device: call to_empty and initialise it in `make`"
        )
    if shard.device.type != mesh.device_type:
        raise ThalwegError(
            f"shards must be on the device that computes, {mesh.device_type}, and '{name}' is on {shard.device}: leave "
            "CPUOffloadPolicy out; --stream, in Python Compute(stream=True), keeps all of a curve but phi(t) on the CPU"
        )
    if (ranks := present.get().processes.size) != mesh.size():
        raise ThalwegError(
            f"all ranks of the network must make every call, and it is divided among {mesh.size()}, with {ranks} in "
            "this run: make it and call thalweg inside `with thalweg.distributed():`, with a mesh of all ranks"
        )
    return Division(tuple(parameter.shape), cuts[0], tuple(shard.shape))


def _check(moving: Mapping[str, nn.Parameter], statistics: Mapping[str, Tensor]) -> None:
    kinds = {parameter.dtype: name for name, parameter in moving.items()}
    if len(kinds) != 1:
        both = " and ".join(f"'{name}' is {kind}" for kind, name in [*kinds.items()][:2])
        raise ThalwegError(f"all moving weights must have one dtype, and there must be some; {both or 'none moves'}")
    if statistics:
        raise ThalwegError(
            f"batch norm ('{next(iter(statistics))}') would have other statistics on every rank of a network in "
            "shards: use layer norm or group norm, or connect networks that fit into one process"
        )


class ShardedProbe(Probe):
    """A network in shards at a point: `point` and `grad` hold this rank's shards. What moves is another network made
    by the caller's function, so there is nothing to compare it with.
    """

    copied = views = hooked = _drops = False

    def __init__(self, shards: Shards, module: nn.Module, weights: Weights | None):
        with same_randomness():
            self.original, self.layout, self.module = module, shards.layout(module), shards.made()
        if self.module is module:
            raise ThalwegError(
                "a network in shards is left as it was, and another one of its function is trained; this function "
                "returned the same network again: let it make a new one"
            )
        self.layout.check(shards.layout(self.module), "the network", "the one that its function makes now")
        parameters = named_parameters(self.module)
        self.moving = {name: parameters[name] for name in self.layout.names}
        self._parameters = list(self.moving.values())
        self._allocate(self._shards(), [shard.stride() for shard in self._shards()])
        self.shared = dict[str, int]()
        self._fixed = {name: parameters[name] for name in self.layout.frozen} | named_buffers(self.module)
        self.load(Weights.of(module) if weights is None else weights)

    def _shards(self) -> list[Tensor]:
        with torch.no_grad():
            return [parameter.to_local() for parameter in self._parameters]  # type: ignore[attr-defined]

    def from_layout_order(self, vector: Tensor) -> Tensor:
        return vector.clone()

    def to_layout_order(self, flat: Tensor) -> Tensor:
        return flat.clone()

    def load(self, weights: Weights) -> None:
        self.layout.check(weights.layout, "the network", "the weights")
        given = {**weights.frozen, **weights.buffers}
        check_state(given, self._fixed, "the weights", "the network")
        self.point.copy_(weights.vector)
        self.sync_parameters()
        self._fill(given)

    def load_original(self) -> None:
        self.load(Weights.of(self.original))

    def sync_parameters(self) -> None:
        reshard(self.module)
        with torch.no_grad():
            torch._foreach_copy_(self._shards(), self._point_views)
        torch.clear_autocast_cache()

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """All-reduced by the network itself, so that each is the mean over ranks."""
        self._taken()  # what an earlier pass has left
        loss.backward()
        return self._taken()

    def gather(self, gradients: Sequence[Tensor | None]) -> None:
        self._taken()
        super().gather([g.to_local() if isinstance(g, DTensor) else g for g in gradients])

    def _taken(self) -> list[Tensor | None]:
        found = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return found

    def check(self) -> None:
        reshard(self.module)
        super().check()

    def parameters(self, flat: Tensor) -> list[nn.Parameter]:
        """Distributed, so that an optimizer sees whole shapes, and norms of its own are those of whole tensors."""
        return [nn.Parameter(part) for part in self.layout.split(flat).values()]


class ShardedStep(RankStep):
    """A step of a network in shards: each rank has its part of the batch and its shards of all vectors, and all ranks
    are at the same t. The network itself gathers its weights, and averages its gradients over ranks.

    How much each rank's part counts, its loss, and requests to save or stop travel in one small message.
    """

    def __init__(self, step: Step, ranks: Ranks, seed: int):
        super().__init__(step, ranks, seed)
        self.clip, step.clip, self.optimizer = step.clip, None, type(step.optimizer).__name__
        self.message = torch.zeros(4, dtype=torch.float64, device=step.probe.device)
        self.requested = self.message[2:]
        self.own_loss, step.mean_loss = step.mean_loss, self._mean_loss

    def __call__(self, batch: Any, lr: float) -> Tensor:
        step = self.step
        with self.ranks.own_randomness(self.seed, self.done), explained(step.probe.module, batch):
            loss = step.forward(batch, step.draw())
            step.probe.backward(loss)
            step.chain_rule(loss.detach())
            if self.clip is not None:
                self._clip(step.trainable.gradient, self.clip)
            with during(f"updating shards by {self.optimizer}, which may not work with torch's distributed tensors"):
                step.update(lr)
        self.done += 1
        return loss.detach()

    def _mean_loss(
        self, task: Task, module: nn.Module, make_batch: Callable[[Any], Any], drawn: Any
    ) -> tuple[Tensor, Number]:
        """That of the whole batch, with a gradient of which the mean over ranks is right."""
        part, counts = self.ranks.share(drawn)
        loss, number = self.own_loss(task, module, make_batch, part)
        number = number * counts
        self.message[0], self.message[1] = loss.detach() * number, number
        self.requested.copy_(torch.tensor(self.requests(), device="cpu"))
        collective(dist.all_reduce, self.message)
        total = self.message[1].clone()
        mean = (self.message[0] / total.clamp(min=1e-30)).to(loss.dtype)
        own = loss * (number * self.ranks.size / total.clamp(min=1e-30)).to(loss.dtype)
        return own + (mean - own).detach(), total

    def _clip(self, gradient: Tensor, most: float) -> None:
        square = torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        norm = self.step.probe.layout.total(square).sqrt()
        gradient.mul_((most / (norm + 1e-6)).clamp(max=1.0).to(gradient))


class ShardedMeasurement(Measurement):
    """Each rank measures its part of every batch."""

    def __init__(
        self, module: nn.Module, task: Task, batches: Batches, device: torch.device, compute: Compute, pool: Any = None
    ):
        super().__init__(module, task, batches, device, replace(compute, graph=False))
        ranks = present.get().processes
        self.ranks = Ranks(ranks.rank, ranks.size)

    def _add(self, drawn: Any) -> None:
        part, counts = self.ranks.share(self.make_batch(drawn))
        before = {name: total.clone() for name, total in self.totals.items()}
        self._add_batch(part, nullcontext())
        if not counts:  # all ranks must run the network, also those for which there was no example
            self.seen = dict.fromkeys(self.seen, 0)
            for name, total in self.totals.items():
                total.copy_(before.get(name, torch.zeros_like(total)))

    def means(self) -> dict[str, float]:
        device = next(iter(self.totals.values())).device
        counts = torch.tensor([*self.counts.values()], dtype=torch.float64, device=device)
        summed = torch.cat([torch.stack([*self.totals.values()]), counts])
        collective(dist.all_reduce, summed)
        for total, value in zip(self.totals.values(), summed, strict=False):
            total.copy_(value)
        self.counts = dict(zip(self.counts, map(int, summed[len(self.totals) :].tolist()), strict=True))
        return super().means()


class ShardedRun(Run):
    """The folder of a training in shards: every rank saves and reads its own, and rank 0 everything else."""

    def __init__(self, run: Run, layout: ShardedLayout, ranks: Processes):
        vars(self).update(vars(run))
        self.layout, self.ranks = layout, ranks

    def due(self, epoch: int | None) -> bool:
        return super().due(None) if epoch is None else self.ranks.once(lambda: Run.due(self, epoch))

    def save(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        places = {name: self._places(name, tensor) for name, tensor in tensors.items()}
        parts = {key: part for found in places.values() for key, part in found.items()}
        rest = {name: tensor for name, tensor in tensors.items() if not places[name]}
        divided = {name: [*found] for name, found in places.items() if found}
        self.layout.save(self.folder / STATE, "state", parts | rest, {**about, "divided": divided})
        self.saved = time.monotonic()

    def _places(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Of a vector, or of what an optimizer holds for one parameter: its shards by name."""
        start, _, number = name.partition(PART)
        if isinstance(tensor, DTensor):
            key = self.layout.names[int(number)]
            if tuple(tensor.shape) != self.layout.divisions[key].shape:
                raise ThalwegError(
                    f"what an optimizer remembers is saved in shards if it has one value for each weight, and what it "
                    f"remembers of '{key}' has others: use another optimizer, or no run folder"
                )
            return {f"{start}.{number}/{key}": tensor}
        ours = name.startswith(("step.vectors.", "step.optimizer.")) and not number
        split = self.layout.split(tensor) if ours and tensor.shape == (self.layout.size,) else {}
        return {f"{name}/{key}": part for key, part in split.items()}

    def load(self, whole: bool = False) -> State | None:
        return super().load(whole)

    def own(self, state: State) -> State:
        """Vectors on the CPU, from where they are copied to where they belong."""
        tensors, about = state[0], dict(state[1])
        divided = about.pop("divided")
        alone = {key for name, keys in divided.items() for key in keys if PART in name}

        def empty(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return self.layout.empty(key, shape, dtype, None if key in alone else "cpu")

        parts = read_shards(self.folder / STATE, about, empty, self.ranks)
        for name, keys in divided.items():
            tensors[name] = parts[keys[0]] if PART in name else self.layout.join([parts[key] for key in keys])
        return tensors, about

    def append(self, name: str, entry: Mapping[str, Any]) -> None:
        if self.ranks.first:
            super().append(name, entry)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return super().lines(name) if self.ranks.first else []

    def rewrite(self, name: str, entries: Sequence[Mapping[str, Any]], changed: bool = True) -> None:
        super().rewrite(name, entries, changed and self.ranks.first)
