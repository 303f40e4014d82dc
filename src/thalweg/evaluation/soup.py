"""Soups: the average of the weights of several networks, of all or of those that improve it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Literal

from torch import nn

from ..batches import Batches
from ..errors import ThalwegError, warn
from ..results import grid, shown, titled
from ..runtime.compute import Call, Compute, StoredResult
from ..store import files
from ..store.runs import Run
from ..tasks import Task, check_task
from ..weightspace.batchnorm import update_bn
from ..weightspace.weights import Weights, average
from .barriers import named
from .fingerprint import Facts, points_fingerprint, scan_fingerprint
from .measure import bad_values
from .scan import scan

HELD_OUT = "held-out"
CLEAR = 0.1  # a barrier: the loss of an average is higher than that of its parts by this share, or its error by as much
FAINT = 0.01  # an error counts only if the loss is higher by this share
Means = dict[str, float]  # quantity -> its mean over the held-out data


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Soup(Weights):
    """The average of several networks, with batch-norm statistics of its own; it prints as a table. Points made from it
    are plain `Weights`, and so is what loads from its file, whose `made` holds the attributes below.

    Attributes:
        members: The names of the networks that were averaged, in the order in which they were added.
        metric: The name of the score.
        score: The score of the average.
        alone: Name -> the score of each network by itself, best first.
        tried: Name -> the score of the average with it, in the order in which networks were tried; those that made the
            score worse were left out.
        barrier: A sentence about the highest barrier that was met, or an empty string.
        units: As in `Scan`.
    """

    members: tuple[str, ...]
    metric: str
    score: float
    alone: Mapping[str, float]
    tried: Mapping[str, float]
    barrier: str
    units: Mapping[str, str]

    @classmethod
    def of_weights(cls, weights: Weights) -> "Soup":
        """The average, with its attributes from `made`."""
        said = {key: value for key, value in weights.made["soup"].items() if key != "how"}
        made = {**said, "members": tuple(said["members"])}
        return cls(weights.layout, weights.vector, weights.buffers, weights.frozen, weights.made, **made)

    def __str__(self) -> str:
        def text(value: float | None) -> str:
            return "-" if value is None else shown(self.metric, value, self.units)

        rows = [
            [name, text(alone), text(self.tried.get(name)), "in" if name in self.members else "out"]
            for name, alone in self.alone.items()
        ]
        table = grid([titled(self.metric, self.units), "alone", "average with it", ""], rows)
        return f"{table}\naverage of {len(self.members)}: {text(self.score)}"


def soup(
    module: nn.Module,
    weights: Sequence[Weights] | Mapping[str, Weights],
    task: Task,
    held_out: Batches,
    *,
    how: Literal["greedy", "uniform"] = "greedy",
    metric: str | None = None,
    maximise: bool = False,
    bn_batches: Batches | None = None,
    compute: Compute | None = None,
    run: Run | str | Path | None = None,
    progress: bool | None = None,
) -> Soup:
    """Average the weights of several networks into one, which costs no more to serve than each of them.

    Examples:
        >>> import torch, thalweg as tw
        >>> x = torch.linspace(-1, 1, 8).reshape(-1, 1)
        >>> networks = {slope: tw.Weights.of(nn.Linear(1, 1, bias=False)) for slope in ("1", "2.5", "9")}
        >>> for slope, each in networks.items():
        ...     _ = each.vector.fill_(float(slope))
        >>> found = tw.soup(nn.Linear(1, 1, bias=False), networks, tw.regression(), [(x, 2 * x)])
        >>> found.members, found.vector
        (('2.5', '1'), tensor([1.7500]))
        >>> print(found)
        loss   alone  average with it
        ----------------------------------
        2.5    0.107            0.107   in
        1      0.429            0.027   in
        9     21.000            2.012  out
        average of 2: 0.027

    All networks and averages are measured in the same way, with statistics recomputed if `bn_batches` are given.

    Args:
        module: A network of the same architecture; it is not changed. Measuring runs on its device.
        weights: Two networks or more, in a list or by name.
        task: The loss and metrics to measure.
        held_out: Data used neither for training nor for testing, to choose by.
        how: "greedy" starts with the best network and takes the others in, from the second best on, unless the score of
            the average becomes worse; "uniform" averages all.
        metric: What to choose by; the task's error by default, or the loss if it has none, as for soft labels.
        maximise: Whether higher values of `metric` are better, as for an accuracy.
        bn_batches: Batches as in training, augmentation included, for the batch-norm statistics of the average.
        compute: How to compute; see `Compute`.
        run: A folder that stores every score and the average. If the call is interrupted, the same call resumes from
            it.
        progress: Whether to show a progress bar. By default it is shown on a terminal.

    Returns:
        The average, with its statistics.

    Warns:
        UserWarning: If the loss of an average is higher than that of its parts: there is a barrier between them. The
            message says how high.

    Raises:
        ThalwegError: If the networks differ in architecture, or none of them can be scored.
    """
    check_task(task)
    if how not in ("greedy", "uniform"):
        raise ThalwegError(f"how must be 'greedy' or 'uniform'; got {how!r}")
    _check(metric, ("loss", "data_loss", *(("error",) if task.metrics is None else task.metrics)))
    networks = named(weights, "a soup")
    norms = next(iter(networks.values())).layout.statistics
    if norms and bn_batches is None:
        raise ThalwegError(
            f"an average of networks with batch norm ('{norms[0]}') has no statistics of its own: set bn_batches= "
            "to the training batches"
        )
    data, ends = {HELD_OUT: held_out}, list(networks.values())
    call = Call.of(compute, progress)
    called = {name: repr(name) if isinstance(weights, Mapping) else f"part {name}" for name in networks}

    def fingerprint() -> Facts:
        return {
            **{"how": how, "metric": metric, "maximise": maximise, "networks": list(networks)},
            **points_fingerprint(ends, "list"),
            **scan_fingerprint(module, ends[0], task, data, 0.0, bn_batches, call.compute),
        }

    def measure(points: list[Weights], name: str) -> list[Means]:
        folder = Run.of(run, f"scores/{name}")
        found = scan(module, points, task, data, bn_batches=bn_batches, compute=compute, run=folder, progress=progress)
        return [{key: float(each[k]) for key, each in found.values[HELD_OUT].items()} for k in range(len(points))]

    def averaged(_: Run | None) -> Weights:
        alone = dict(zip(networks, measure(ends, "alone"), strict=True))
        chosen, sign = _chosen(metric, alone), -1 if maximise else 1
        scored = _scored(alone, chosen, held_out, bn_batches, how, called)
        order = sorted(scored, key=lambda name: sign * alone[name][chosen])
        selection = Selection(networks, alone, chosen, maximise, measure, called)
        (selection.greedy if how == "greedy" else selection.uniform)(order)
        mean = average([networks[name] for name in selection.members])
        mean = mean if bn_batches is None else update_bn(module, mean, bn_batches, task)
        said = {
            **{"how": how, "members": selection.members, "metric": chosen, "score": selection.best[chosen]},
            **{"alone": {name: alone[name][chosen] for name in order}, "tried": selection.tried},
            **{"barrier": selection.barrier, "units": dict(task.units)},
        }
        return replace(mean, made={"soup": said})

    def load(folder: Path) -> Weights:
        found = Weights.load(folder / files.WEIGHTS)
        with files.reading(folder / files.WEIGHTS):
            Soup.of_weights(found)
        return found

    stored = StoredResult(files.WEIGHTS, load, lambda made, folder: made.save(folder / files.WEIGHTS))
    mean = call.resumed(run, "soup", fingerprint, stored, averaged)
    found = Soup.of_weights(mean.to(next(module.parameters()).device))
    if found.barrier:
        warn(found.barrier)
    return found


@dataclass
class Selection:
    """Which networks are averaged, and what was measured on the way.

    Attributes:
        networks: All networks, by name.
        alone: What was measured at each of them.
        metric: What to choose by.
        maximise: Whether higher values of `metric` are better.
        measure: Measures a list of points, under a name.
        called: What to call each network in messages.
        members: The names of those that are in.
        best: What was measured at their average.
        tried: The score of the average with each network that was tried.
        barriers: For each average whose loss or error is clearly above that of its parts: how clearly, and a sentence.
    """

    networks: Mapping[str, Weights]
    alone: Mapping[str, Means]
    metric: str
    maximise: bool
    measure: Callable[[list[Weights], str], list[Means]]
    called: Mapping[str, str]
    members: list[str] = field(default_factory=list)
    best: Means = field(default_factory=dict)
    tried: dict[str, float] = field(default_factory=dict)
    barriers: list[tuple[float, str]] = field(default_factory=list)

    @property
    def barrier(self) -> str:
        """A sentence about the highest barrier; empty if there is none."""
        if not self.barriers:
            return ""
        _, which = max(self.barriers)
        more = f" (and {len(self.barriers) - 1} more)" if len(self.barriers) > 1 else ""
        return (
            f"averaging cannot work across a barrier, and there is one of {which}{more}; "
            "`thalweg barriers --align`, in Python "
            "barriers(..., align=True), shows which networks can be averaged, and which can be once they are aligned"
        )

    def uniform(self, order: Sequence[str]) -> None:
        self.members, parts = list(order), [self.alone[name] for name in order]
        self.best = self._average(self.members)
        self._note_barrier("all networks", parts, [1 / len(parts)] * len(parts), self.best)

    def greedy(self, order: Sequence[str]) -> None:
        first, *others = order
        self.members, self.best, self.tried = [first], self.alone[first], {first: self.alone[first][self.metric]}
        for name in others:
            found, share = self._average([*self.members, name]), 1 / (len(self.members) + 1)
            self.tried[name], before = found[self.metric], self.best[self.metric]
            if self.tried[name] >= before if self.maximise else self.tried[name] <= before:
                self.members, self.best = [*self.members, name], found
            else:
                self._note_barrier(self.called[name], [self.best, self.alone[name]], [1 - share, share], found)

    def _average(self, names: Sequence[str]) -> Means:
        return self.measure([average([self.networks[name] for name in names])], f"average-{len(self.tried) + 1}")[0]

    def _note_barrier(self, name: str, parts: Sequence[Means], shares: Sequence[float], found: Means) -> None:
        """Note a barrier: how far the loss, or else the error, of an average is above the average of its parts'."""
        for quantity in ("loss", "error") if "error" in found else ("loss",):
            own = [part[quantity] for part in parts]
            excess = found[quantity] - sum(share * value for share, value in zip(shares, own, strict=True))
            clear = excess / (abs(max(own)) or 1e-12 if quantity == "loss" else 1)
            if not clear > FAINT:  # where not even the loss is higher, the error is so by chance
                return
            if found[quantity] > max(own) and clear > CLEAR:
                said = f"{excess:.3g} with {name}: the {quantity} of the average is {found[quantity]:.3g}"
                self.barriers.append((clear, f"{said}, of its parts {min(own):.3g} to {max(own):.3g}"))
                return


def _check(metric: str | None, known: Iterable[str]) -> None:
    if metric is not None and metric not in known:
        raise ThalwegError(
            f"metric must be one of the quantities that the task measures, {', '.join(known)}; got {metric!r}"
        )


def _chosen(metric: str | None, alone: Mapping[str, Means]) -> str:
    """The metric to choose by; the error is not defined for soft labels."""
    _check(metric, next(iter(alone.values())))
    return metric or ("loss" if all(isnan(means.get("error", nan)) for means in alone.values()) else "error")


def _scored(
    alone: Mapping[str, Means],
    metric: str,
    held_out: Batches,
    bn_batches: Batches | None,
    how: str,
    called: Mapping[str, str],
) -> list[str]:
    """The networks whose score is finite."""
    bad = [name for name, means in alone.items() if not isfinite(means[metric]) or isnan(means["loss"])]
    if bad:
        why = bad_values(held_out, bn_batches, len(bad) == len(alone))
        said = f"the score of {', '.join(called[name] for name in bad)} on the held-out data is NaN or infinite"
        if why or how == "uniform" or len(bad) == len(alone):
            advice = f"{why}, so clean the data" if why else "leave out what has diverged"
            raise ThalwegError(f"a soup needs networks that can be scored, but {said}: {advice}")
        warn(f"{said}: left out")
    return [name for name in alone if name not in bad]
