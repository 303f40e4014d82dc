"""The loss and metrics of a network over a data set."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batches import Batches, not_finite
from ..errors import ThalwegError
from ..explaining import explained
from ..runtime.compute import Compute
from ..runtime.cuda_graphs import Replay, form_of
from ..runtime.rng import seeded
from ..runtime.threads import few_threads
from ..runtime.transfer import moved, source
from ..tasks import Task, are_labels
from ..weightspace.probe import Probe
from ..weightspace.proof import Proof, prove_on
from ..weightspace.state import Contents, ModuleState, kept
from ..weightspace.weights import Weights
from .metrics import rows

SHARE = 8  # one in so many batches is measured again
WIDE = 8192  # examples at once on a card to begin with
_never = count(-1, -1)
Call = tuple[tuple[Any, ...], Any, list[Any], list[Tensor]]  # the tensors, so that no other takes the place of one


class Measurement:
    """The means of loss and metrics over a data set, for a network that is measured at one point after another.

    Each call gives `data_loss` and the task's metrics over all examples, however they are batched.

    early: the sum of the loss over the first batches of the last call, and how many examples they were.
    """

    early: tuple[Tensor, int]

    def __init__(self, module: nn.Module, task: Task, batches: Batches, device: torch.device, compute: Compute, pool: Any = None):
        self.module, self.task, self.batches, self.device, self.compute, self.pool = module, task, batches, device, compute, pool
        self.totals: dict[str, Tensor] = {}
        self.state: ModuleState | None = None
        self._batched(WIDE if device.type == "cuda" else 0)

    def __call__(self, first: bool = False) -> dict[str, float]:
        """first: stop after the first batches."""
        while True:
            try:
                return self._measured(first)
            except torch.OutOfMemoryError:
                if self.used is self.batches:
                    raise
                self._batched(self.width // 2)

    def _batched(self, width: int) -> None:
        self.width, self.used = width, _widened(self.batches, width, self.task, self.module)
        self.passes, self.make = source(self.used, self.device)
        self.some = max(1, len(self.used) // SHARE)
        self.replay = Replay(self._add, self.module, self.device, self.compute.captures(self.device), self.pool, self._hold)
        self.alive: list[Contents] = []  # tensors that a captured pass reads, and that are put away after it
        self.sizes: dict[str, dict[str, int]] = {}

    def _measured(self, first: bool) -> dict[str, float]:
        for total in self.totals.values():
            total.zero_()
        counts: dict[str, int] = {}
        with torch.no_grad(), kept(self.module, self.state) as self.state:  # such as the state that a recurrent network carries
            for number, drawn in enumerate(self.passes(), start=1):
                self.seen: dict[str, int] = {}
                with explained(self.module, drawn):
                    self.replay(drawn)
                form = form_of(drawn) if self.replay.active else ""
                self.sizes[form] = self.seen or self.sizes[form]  # a replay does not tell, and all of one form have one size
                counts = {name: counts.get(name, 0) + size for name, size in self.sizes[form].items()}
                if number == self.some:
                    self.early = self.totals["data_loss"].clone(), counts["data_loss"]
                    if first:
                        break
        if counts.get("data_loss") == 0:
            raise ThalwegError("nothing in these data counts, as where all labels are -100: the task's loss gave empty tensors")
        means = {name: float(self.totals[name]) / size if size else nan for name, size in counts.items()}
        if self.task.metrics is None and isnan(means.get("error", 0.0)):
            del means["error"]  # the built-in one, which is not defined for all targets
        return means

    def _hold(self) -> None:
        self.alive.append(Contents(self.module))

    def _add(self, drawn: Any) -> None:
        batch = self.make(drawn)
        (values, size), predictions = _losses_and_predictions(self.module, self.task, batch, self.device, self.compute)
        self._count("data_loss", values * size if values.ndim == 0 else values, size)
        if predictions is not None:
            for name, metric in self.task.measure(*predictions).items():
                self._count(name, metric, metric.numel())

    def _count(self, name: str, values: Tensor, size: int) -> None:
        if name not in self.totals:
            self.totals[name] = torch.zeros((), dtype=torch.float64, device=values.device)
        self.totals[name] += values.double().sum()
        self.seen[name] = size


class First:
    """The first of the batches."""

    def __init__(self, batches: Batches):
        self.batches = batches

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        yield next(iter(self.batches))


def prove_measuring(probe: Probe, task: Task, batches: Batches, compute: Compute) -> Proof:
    """Raise unless the first batch is measured with the probe's own weights alone, as the caller's module would."""

    def measured(batch: Any) -> Any:
        (values, _), predictions = _losses_and_predictions(probe.module, task, batch, probe.device, compute)
        return values, predictions and predictions[0]

    return prove_on(probe, measured, batches)


def prove_predicting(probe: Probe, task: Task, batches: Batches) -> Proof:
    """The same for predictions alone."""
    return prove_on(probe, lambda batch: task.predictions(probe.module, batch)[0], batches)


def predicted(
    module: nn.Module,
    task: Task,
    batches: Batches,
    device: torch.device,
    then: Callable[[Tensor, Tensor], Tensor],
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What `then` makes of outputs and targets, and the targets, over a data set, on the CPU.

    width: how many examples at once to begin with.
    """
    width = width if width is not None else WIDE if device.type == "cuda" else 0
    while True:
        used, values, targets = _widened(batches, width, task, module), [], []
        try:
            with torch.no_grad(), kept(module):
                for batch in moved(used, device):
                    with explained(module, batch), few_threads(device, module, batch):
                        outputs, wanted = task.predictions(module, batch)
                    values.append(then(outputs, wanted).cpu())
                    targets.append(wanted.cpu())
            return _joined(values, targets)
        except torch.OutOfMemoryError:
            if used is batches:
                raise
            width //= 2


def check_finite(values: Tensor, what: str, weights: Weights, batches: Batches) -> None:
    """Raise if predictions are not finite, naming what is not: the inputs, the weights, or something between them."""
    if bool(values.isfinite().all()):
        return
    with seeded(0, batches):
        nan, infinite = not_finite(batches), not_finite(batches, torch.isinf)
    bad = next((name for name, t in weights.tensors().items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
    if nan is None and bad is not None:
        reason = f"its '{bad}' is not finite, so it has diverged: leave it out"
    elif (found := nan or infinite) is not None:
        reason = f"{found}, and the network is not to blame: clean the data"
    else:
        reason = "its weights and the data are finite, so something overflows within: leave it out, or use a wider dtype"
    raise ThalwegError(f"{what} predicts NaN or infinity: {reason}")


def _joined(values: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All batches as one; maps of labels of several sizes pixel by pixel."""
    if len({value.shape[1:] for value in values}) > 1 and all(map(are_labels, values, targets)):
        values, targets = [rows(value) for value in values], [wanted.flatten() for wanted in targets]
    return torch.cat(values), torch.cat(targets)


def _widened(batches: Batches, width: int, task: Task, module: nn.Module) -> Batches:
    """Where the result does not depend on how examples are batched, they come as many at once as the card can hold."""
    alike = task.size is None and not any(isinstance(p, _BatchNorm) and p.running_mean is None for p in module.modules())
    return batches.widened(width) if alike and hasattr(batches, "widened") else batches


def _losses_and_predictions(
    module: nn.Module, task: Task, batch: Any, device: torch.device, compute: Compute
) -> tuple[tuple[Tensor, int], tuple[Tensor, Tensor] | None]:
    """Both by one pass where they ask the network the same; without predictions for a task that makes none."""
    with compute.casting(device), _recorded(module) as calls:
        losses = task.losses(module, batch)
    if task.predict is None:
        return losses, None
    with compute.casting(device), _recalled(module, calls):
        return losses, task.predictions(module, batch)


@contextmanager
def _recorded(module: nn.Module) -> Iterator[list[Call]]:
    """Note what the network is asked and what it answers while the loss is computed."""
    calls: list[Call] = []
    if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
        yield calls
        return

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        asked = (*args, *kwargs.keys(), *kwargs.values())
        calls.append((asked, answer, _versions(asked, answer), [*_tensors((asked, answer), 5)]))

    hook = module.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


@contextmanager
def _recalled(module: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Let the predictions have the same answer to the same question, asked once, if nobody wrote to either since."""
    if not calls:
        yield
        return
    known = "forward" in module.__dict__
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        asked = (*args, *kwargs.keys(), *kwargs.values())
        if len(calls) == 1:
            before, answer, versions, _ = calls[0]
            same = len(asked) == len(before) and all(a is b for a, b in zip(asked, before, strict=True))
            if same and _versions(asked, answer) == versions:
                return answer
        return original(*args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        if known:
            module.forward = original
        else:
            del module.forward


def _versions(*values: Any) -> list[Any]:
    """Every tensor in sight, and how often it has been written to; those of inference mode do not tell."""
    tensors = _tensors(values, 5)
    return [(id(item), next(_never) if item.is_inference() else item._version) for item in tensors]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """Also those inside containers and objects."""
    if isinstance(value, Tensor):
        yield value
    elif depth:
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
        own = getattr(value, "__dict__", {}) if not isinstance(value, nn.Module | type) else {}
        for item in (*inside, *own.values()):
            yield from _tensors(item, depth - 1)
