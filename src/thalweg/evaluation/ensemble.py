"""Ensembles: the average of the predictions of several networks."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, count, to_device
from ..error_notes import explained
from ..errors import ThalwegError, real_number
from ..results import Report
from ..runtime.compute import Call, Compute
from ..runtime.rng import MEASURING, seeded
from ..store import files
from ..tasks import Task, check_task, identity, predict_targets, predict_tokens, softmax, token_softmax
from ..turns import own_turn
from ..weightspace.batchnorm import update_bn
from ..weightspace.layout import Layout
from ..weightspace.probe import Probe
from ..weightspace.proof import agree, prove_on
from ..weightspace.weights import Weights, average, check_list, check_weights
from . import metrics
from .calibration import Temperature, tempered
from .ensemble_folder import MANIFEST, load_member, read, save
from .measure import Points, check_alone, check_finite, check_order, predicted
from .scoring import Scored, Scores
from .serving import (
    SOFTMAX,
    EnsembleModule,
    Prediction,
    called,
    class_probabilities,
    class_softmax,
    network_at,
    scaled,
    token_probabilities,
)

HELD_OUT = "held-out data"
SAME = "the very data that are scored, so that calibrated scores are too good: give other held-out data"
CROSS_FITTED = "each half of the data, for the other half"
KEPT = f"the data given to calibrate (members and smaller ensembles: {CROSS_FITTED})"


class Ensemble:
    """Several networks of one architecture, whose predicted probabilities are averaged.

    Examples:
        >>> import thalweg as tw
        >>> members = [tw.Weights.of(nn.Linear(4, 3)) for _ in range(3)]
        >>> ensemble = tw.Ensemble(nn.Linear(4, 3), members)
        >>> batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
        >>> probabilities, targets = ensemble.predict(tw.classification(), batches)
        >>> probabilities.shape, sorted(ensemble.score(tw.classification(), batches))
        (torch.Size([8, 3]), ['brier', ...'disagreement', 'ece', 'error', 'nll'])

    Args:
        module: A network of the same architecture; it is not changed. Only one member at a time is on its device,
            except for `probabilities` and `as_module`.
        members: The networks, from one run or several; with batch norm they must have their statistics.

    Attributes:
        temperature: What the averaged probabilities are scaled with, p ** (1 / temperature); None until `calibrate`, or
            until it is set.
    """

    def __init__(self, module: nn.Module, members: Sequence[Weights]):
        check_list(members, "an ensemble")
        with own_turn():
            self.module, self._probe = module, Probe(module)
        self.members, self._proven = list[Weights](), list[Task]()
        self._temperature: float | None = None
        self._served: tuple[list[tuple[Weights, int]], EnsembleModule] | None = None
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        kept = "" if self.temperature is None else f", temperature {self.temperature:.3g}"
        return f"Ensemble({len(self)} x {self._probe.layout.size} weights{kept})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the private copy of the network, whose parameters a pickle would separate from their vector."""
        return type(self), (self.module, self.members), {"_temperature": self._temperature}

    @property
    def temperature(self) -> float | None:
        """The temperature of the averaged probabilities, or None; set by `calibrate`, or by hand."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float | None) -> None:
        if value is not None and not 0 < (value := float(real_number(value, "the temperature"))) < inf:
            raise ThalwegError(f"a temperature must be above 0 and finite, or None; got {value!r}")
        self._temperature = value

    @property
    def _kept(self) -> Temperature | None:
        return None if self.temperature is None else Temperature(self.temperature)

    def add(self, member: Weights) -> None:
        """Add a member, and forget the temperature, which was fitted without it.

        Args:
            member: A network of the same architecture, with its batch-norm statistics; it is kept on the CPU.
        """
        name = f"member {len(self.members) + 1}"
        check_weights(member, name)
        self._probe.layout.check(member.layout, "the network", name)
        if not member.has_statistics:
            raise ThalwegError(
                f"{name} has no batch-norm statistics, like all points of curves and averages: give a network that has "
                "them, or compute them in Python with update_bn"
            )
        self.members.append(member.to("cpu"))
        self.temperature = None

    def predict(self, task: Task, batches: Batches, *, progress: bool | None = None) -> tuple[Tensor, Tensor]:
        """Predict for a whole data set.

        Args:
            task: How the network is called on a batch, and how its outputs become probabilities.
            batches: The data, with targets.
            progress: Whether to show a progress bar. By default it is shown on a terminal.

        Returns:
            The averaged probabilities (for regression the outputs), at the ensemble's temperature if it has one, and
            the targets, on the CPU, in the order of the batches.
        """
        [(_, mean, targets)] = deque(self._growing(task, batches, progress), maxlen=1)
        if self.temperature is not None and task.probabilities is not identity:
            mean = tempered(self._to_scale(mean), self.temperature)
        return mean.to(torch.promote_types(self._probe.layout.dtype, torch.float32)), targets

    def probabilities(self, inputs: Any, task: Task | None = None) -> Prediction:
        """Predict for one batch of inputs without targets; all members stay on the device from the first call on.

        Examples:
            >>> import thalweg as tw
            >>> ensemble = tw.Ensemble(nn.Linear(4, 3), [tw.Weights.of(nn.Linear(4, 3)) for _ in range(5)])
            >>> found = ensemble.probabilities(torch.randn(1, 4))
            >>> found.probabilities.shape, found.members.shape, found.mutual_information.shape
            (torch.Size([1, 3]), torch.Size([5, 1, 3]), torch.Size([1]))

        Args:
            inputs: The inputs of the network, without targets: a tensor, a tuple of them, or a dict by name.
            task: A task without `predict=`, if its `probabilities=` is not a softmax over dimension 1 of what the
                network returns, or if that has three dimensions.

        Returns:
            The probabilities of the ensemble and of each member, the entropy and the mutual information. Classes are in
            dimension 1, also where the network has them last, as with `language_modelling()`: (batch, words, tokens).
        """
        own = _own_probabilities(task)
        if own is identity:
            raise ThalwegError("this task has outputs and no probabilities of classes: use predict, or as_module(task)")
        inputs = to_device(inputs, self._probe.device)
        with torch.no_grad(), explained(self._probe.module, inputs):
            written = [(w, 0 if w.vector.is_inference() else w.vector._version) for w in self.members]
            if self._served is None or self._served[0] != written:
                prove_on(self._probe, partial(called, self._probe.module), [inputs]).again()
                self._served = written, self._steady(self.as_module(task), inputs)
            served = self._served[1]
            served.probabilities = own
            served.temperature = self.temperature if own in SOFTMAX else None
            together, found = called(served.both, inputs)
        if not isfinite(float(found.sum())):
            for k, values in enumerate(found):
                check_finite(values, f"member {k + 1}", self.members[k], [inputs])
        if served.temperature is None:
            together = scaled(self._to_scale(together), self.temperature)
        return Prediction(together, found)

    def _to_scale(self, probabilities: Tensor) -> Tensor:
        """Return the probabilities; raise if there is a temperature and they do not add up to one."""
        if self.temperature is not None and not metrics.distributions(probabilities):
            raise ThalwegError(
                "a temperature scales probabilities that add up to one over dimension 1, and those of this task do "
                "not: set .temperature = None"
            )
        return probabilities

    def _steady(self, module: EnsembleModule, inputs: Any) -> EnsembleModule:
        """Return the module; raise if it predicts something else again, or than each member by itself."""
        answers = list[Tensor]()
        for _ in range(2):
            with seeded(0):
                answers.append(called(module.both, inputs)[1])
        if bool(answers[0].isfinite().all()):
            what = "the ensemble predicts something else for the same inputs again"
            check_alone(self._probe, answers[0], answers[1], what)
        for k, member in enumerate(self.members):
            self._probe.load(member)
            alone = list[Tensor]()
            for seed in range(2):
                with seeded(seed):
                    alone.append(called(partial(module.alone, self._probe.module.eval(), None), inputs))
            if bool(alone[0].isfinite().all()) and agree(self._probe, *alone):  # not one of dropout that stays active
                what = f"member {k + 1} predicts something else by itself than with the others"
                check_alone(self._probe, alone[0], answers[0][k], what)
        return module

    def as_module(self, task: Task | None = None) -> EnsembleModule:
        """All members as one module that returns the probabilities of the ensemble, for `torch.export` and serving.

        Args:
            task: A task without `predict=`, if its `probabilities=` is not a softmax over dimension 1 of what the
                network returns, or if that has three dimensions.

        Returns:
            A module with the inputs of the network, on its device, with copies of all members, in evaluation mode; it
            includes the ensemble's temperature, and has classes in dimension 1, as `probabilities`. For batches of any
            size give `torch.export` the inputs by position.
        """
        self._probe.load(self.members[0])  # without state that earlier passes left in the network
        return EnsembleModule(
            [network_at(self._probe.module, member, self.module) for member in self.members],
            _own_probabilities(task),
            self.temperature,
        )

    def calibrate(self, task: Task, held_out: Batches, *, progress: bool | None = None) -> float:
        """Fit the temperature with which `predict` and `probabilities` scale their results from then on.

        Args:
            task: A task with labels.
            held_out: Data that were not trained on, preferably other data than those to score on.
            progress: Whether to show a progress bar. By default it is shown on a terminal.

        Returns:
            The temperature, which is above 1 if the ensemble was too sure. It is saved and loaded with the ensemble.

        Raises:
            ThalwegError: If no temperature is best, for example because all predictions are right.
        """
        [(_, found)] = deque(self._on_held_out(task, held_out, progress), maxlen=1)
        if found.best.why:
            raise ThalwegError(f"no temperature has the lowest NLL on the held-out data: {found.best.why}")
        self.temperature = found.best.value
        return found.best.value

    def score(
        self, task: Task, batches: Batches, *, held_out: Batches | None = None, progress: bool | None = None
    ) -> dict[str, float]:
        """Score the ensemble.

        Args:
            task: The task.
            batches: The data to score on.
            held_out: Other data, to fit the temperature of the calibrated scores; as in `report`.
            progress: Whether to show a progress bar. By default it is shown on a terminal.

        Returns:
            error, nll, brier, ece; after temperature scaling calibrated_error (which is the error, since a temperature
            does not change the order of classes), calibrated_nll and calibrated_ece; and the mean pairwise disagreement
            of the members. Those that are not defined are left out: several for soft labels (mixup), and the calibrated
            ones where there is no temperature, as where all predictions are right. For regression the squared error.
        """
        found, disagreement = self.scored(task, batches, held_out, progress)
        return Scores(found.scores | disagreement, found.why_none)

    def scored(
        self, task: Task, batches: Batches, held_out: Batches | None = None, progress: bool | None = None
    ) -> tuple[Scored, dict[str, float]]:
        """The predictions of the ensemble next to the targets, and the disagreement of its members.

        Args:
            task: The task.
            batches: The data to score on.
            held_out: Other data, to fit the temperature of the calibrated scores; as in `report`.
            progress: Whether to show a progress bar. By default it is shown on a terminal.
        """
        fitted = self._kept
        if held_out is not None:
            fitted = deque(self._on_held_out(task, held_out, progress), maxlen=1)[0][1].best
        chosen = []
        for own, mean, targets in self._growing(task, batches, progress):
            chosen += Scored(task, own, targets).chosen
            found = Scored(task, mean, targets, fitted)
        pairs = metrics.disagreement(torch.stack(chosen)).tolist() if chosen else []
        return found, _disagreement(pairs, len(self))

    def report(
        self,
        task: Task,
        batches: Batches,
        *,
        held_out: Batches | None = None,
        bn_batches: Batches | None = None,
        progress: bool | None = None,
    ) -> Report:
        """Scores as members are added, of each member alone, of the average of their weights, and how members differ.

        Args:
            task: The task.
            batches: The data to score on.
            held_out: Other data, to fit the temperatures of the calibrated scores. Without them the ensemble has the
                temperature kept by `calibrate`; otherwise each half of `batches` is scaled with the temperature that
                was fitted on the other half.
            bn_batches: Batches as in training, augmentation included, for the batch-norm statistics of the average.
            progress: Whether to show a progress bar. By default it is shown on a terminal.
        """
        temperatures: list[Any] = [(None, None)] * (len(self) - 1) + [(None, self._kept)]
        if held_out is not None:
            temperatures = [(own.best, mean.best) for own, mean in self._on_held_out(task, held_out, progress)]
        growth = []
        members = []
        chosen = []
        for (apart, pooled), (own, mean, targets) in zip(
            temperatures, self._growing(task, batches, progress), strict=True
        ):
            alone, together = Scored(task, own, targets, apart), Scored(task, mean, targets, pooled)
            members.append(alone.scores)
            growth.append(together.scores)
            chosen += alone.chosen
        pairs = metrics.disagreement(torch.stack(chosen)).tolist() if chosen else []
        for k, entry in enumerate(growth, start=1):
            entry |= _disagreement(pairs, k)
        notes = [f"no calibrated scores, since {together.why_none}"] if together.why_none else []
        averaged = self._averaged(task, batches, held_out, bn_batches, notes)
        scaled = together.after is not None
        fitted_on = (CROSS_FITTED if self.temperature is None else KEPT) if held_out is None else HELD_OUT
        return Report(
            growth,
            members,
            pairs,
            [a.distance(b) for a, b in pairwise(self.members)],
            together.reliability,
            calibrated_reliability=together.calibrated_reliability,
            temperature=float(together.temperatures.mean()) if scaled else None,
            fitted_on=(SAME if held_out is batches else fitted_on) * scaled,
            averaged=averaged,
            megabytes=megabytes(self.members),
            megabytes_averaged=megabytes(self.members[:1]),
            notes=notes,
        )

    def save(self, folder: str | Path) -> None:
        """Write one safetensors file per member, one for shared frozen parameters, and a manifest with hashes and
        provenance.

        Args:
            folder: A new folder, or that of an earlier ensemble, which is replaced.
        """
        save(files.place(folder), self._probe.layout, self.members, self.temperature)

    @classmethod
    def load(cls, folder: str | Path, module: nn.Module, skip: Collection[str] = ()) -> "Ensemble":
        """Read an ensemble from its folder or from that of a walk; each member is checked against the manifest.

        Args:
            folder: The folder written by `save`, or the run folder of a `walk`.
            module: A network of the same architecture.
            skip: File names of members to leave out, such as a damaged one.
        """
        manifest = files.inside(folder, MANIFEST, f"members/{MANIFEST}")
        if manifest.parent.parent == Path(folder):
            files.no_link(manifest.parent)
        entries, temperature = read(manifest, Layout.of(module))
        found = cls(module, [load_member(manifest, entry) for entry in entries if entry["file"] not in skip])
        found.temperature = temperature if len(found) == len(entries) else None  # which was fitted to all of them
        return found

    def _on_held_out(self, task: Task, held_out: Batches, progress: bool | None) -> Iterator[tuple[Scored, Scored]]:
        """Each member, and the ensemble up to it, on data with labels to fit temperatures to."""
        try:
            for own, mean, targets in self._growing(task, held_out, progress):
                yield Scored(task, own, targets).labelled(), Scored(task, mean, targets).labelled()
        except ThalwegError as error:
            raise ThalwegError(f"on the held-out data, {error}") from error

    def _averaged(
        self, task: Task, batches: Batches, held_out: Batches | None, bn_batches: Batches | None, notes: list[str]
    ) -> dict[str, float]:
        """The scores of the mean of the members' weights as one network; none where there is no such network."""
        if len(self) == 1:
            return {}
        try:
            mean = self.average(task, bn_batches)
            values, targets = predictions(self._probe, mean, task, batches)
            check_finite(values, "it", mean, batches)
        except ThalwegError as error:
            notes.append(f"the average of the members is not scored: {error}")
            return {}
        fitted = None if held_out is None else Scored(task, *predictions(self._probe, mean, task, held_out)).best
        found = Scored(task, values, targets, fitted)
        if found.why_none and not notes:
            notes.append(f"the average has no calibrated scores, since {found.why_none}")
        return found.scores

    def average(self, task: Task | None = None, bn_batches: Batches | None = None) -> Weights:
        """The mean of the members' weights, as one network that costs one forward pass.

        Args:
            task: How the network is called on a batch, as in `update_bn`.
            bn_batches: Batches as in training, augmentation included, which networks with batch norm need for their
                statistics.
        """
        mean = average(self.members) if len(self) > 1 else self.members[0]
        if mean.has_statistics:
            return mean
        if bn_batches is None:
            raise ThalwegError(
                "an average has no batch-norm statistics of its own: set bn_batches= to the training batches"
            )
        return update_bn(self.module, mean, bn_batches, task).to("cpu")

    def _growing(self, task: Task, batches: Batches, progress: bool | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each member: its predictions, those of the ensemble so far, and the targets."""
        check_task(task)
        count(batches)
        call = Call(Compute(), progress)
        total, first, processes = torch.zeros((), device="cpu"), None, call.processes
        new, probe = not any(task is known for known in self._proven), self._probe
        proof = prove_on(probe, lambda batch: task.predictions(probe.module, batch)[0], batches) if new else None
        with call.bar("predicting", len(self)) as bar:
            # each rank has one member of a round, or perhaps none in the last
            own = (
                [predictions(probe, w, task, batches) for w in self.members[start + processes.rank :][:1]]
                for start in range(0, len(self), processes.size)
            )
            found = (pair for ranks in map(processes.gather, own) for pairs in ranks for pair in pairs)
            for k, (values, targets) in enumerate(found, start=1):
                check_finite(values, f"member {k}", self.members[k - 1], batches)
                check_order(targets if first is None else first, targets, "the batches")
                first, total = targets, total + values
                bar.advance()
                if proof is not None and k == len(self):
                    proof.again()
                    self._look_again(task, batches, values)
                yield values, total / k, targets

    def _look_again(self, task: Task, batches: Batches, values: Tensor) -> None:
        """Predict the first batch of the last member again with a new copy of the network; once per task."""
        probe = Probe(self.module)
        again, _ = predictions(probe, self.members[-1], task, batches, first=True)
        if again.ndim != values.ndim:  # label maps of several sizes are concatenated by pixels
            again = metrics.rows(again)
        what = "the last member predicts something else by itself than after the others"
        check_alone(probe, again, values[: len(again)], what)
        self._proven.append(task)


def predictions(
    probe: Probe, member: Weights, task: Task, batches: Batches, first: bool = False
) -> tuple[Tensor, Tensor]:
    """Predictions and targets of one member, of the first batch alone or of all."""
    with Points(probe, task).at(member), seeded(MEASURING, batches):
        some = [next(iter(batches))] if first else batches
        return predicted(probe.module, task, some, probe.device, partial(metrics.averaged, task))


def _disagreement(pairs: list[list[float]], k: int) -> dict[str, float]:
    """The mean over the pairs of the first k members; a single one agrees with itself."""
    mean = sum(sum(row[:k]) for row in pairs[:k]) / (k * (k - 1)) if k > 1 else 0.0
    return {"disagreement": mean} if pairs else {}


def _own_probabilities(task: Task | None) -> Callable[..., Tensor]:
    """The function that turns the outputs of a member into what is averaged."""
    if task is not None:
        check_task(task)
        if task.predict not in (predict_targets, predict_tokens):
            raise ThalwegError(
                "the outputs of this task are what its predict= makes of a batch with targets, and here are inputs "
                "alone: give a task without predict=, whose probabilities= takes what the network returns"
            )
    given = None if task is None else task.probabilities
    if given is token_softmax:
        return token_probabilities
    return class_softmax if given is softmax else given or class_probabilities


def megabytes(members: Sequence[Weights]) -> float:
    """What the networks need in memory and on disk; frozen parameters that they share count once."""
    own = [tensor for member in members for tensor in (member.vector, *member.buffers.values())]
    shared = {id(tensor): tensor for member in members for tensor in member.frozen.values()}
    return sum(tensor.nbytes for tensor in (*own, *shared.values())) / 1e6
