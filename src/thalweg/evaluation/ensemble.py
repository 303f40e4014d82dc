"""Ensembles: the average of the predictions of several networks."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Batches, count
from ..errors import ThalwegError
from ..results import Report
from ..runtime.compute import present
from ..runtime.progress import Progress
from ..runtime.rng import seeded
from ..store import files
from ..tasks import Task, check_task, identity
from ..weightspace.layout import Layout
from ..weightspace.probe import Probe
from ..weightspace.proof import prove_on
from ..weightspace.weights import Weights, base_name, check_list
from . import metrics
from .measure import Points, check_alone, check_finite, check_order, predicted

MANIFEST = "ensemble.json"


class Ensemble:
    """Several networks of one architecture, whose predicted probabilities are averaged.

    Examples:
        >>> import thalweg as tw
        >>> members = [tw.Weights.of(nn.Linear(4, 3)) for _ in range(3)]
        >>> ensemble = tw.Ensemble(nn.Linear(4, 3), members)
        >>> batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
        >>> probabilities, targets = ensemble.predict(tw.classification(), batches)
        >>> probabilities.shape, sorted(ensemble.score(tw.classification(), batches))
        (torch.Size([8, 3]), ['brier', 'disagreement', 'ece', 'error', 'nll'])

    Args:
        module: A network of the same architecture; it is not changed. Only one member at a time is on its device.
        members: The networks, from one run or several; with batch norm they must have their statistics.
    """

    def __init__(self, module: nn.Module, members: Sequence[Weights]):
        check_list(members, "an ensemble")
        self.module, self._probe = module, Probe(module)
        self.members, self._proven = list[Weights](), list[Task]()
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Weights) -> None:
        """Add a member of the same architecture, with its batch-norm statistics."""
        name = f"member {len(self.members) + 1}"
        if not isinstance(member, Weights):
            raise ThalwegError(f"members are Weights; {name} is {type(member).__name__}: use Weights.of(module)")
        self._probe.layout.check(member.layout, "the network", name)
        if not member.has_statistics:
            raise ThalwegError(
                f"{name} has no batch-norm statistics, as points of curves and averages have none: use update_bn first"
            )
        self.members.append(member.to("cpu"))

    def predict(self, task: Task, batches: Batches, *, progress: bool | None = None) -> tuple[Tensor, Tensor]:
        """Predict with the ensemble.

        Returns:
            The averaged probabilities (for regression the outputs) and the targets, on the CPU, in the order of the
            batches.
        """
        [(_, mean, targets)] = deque(self._growing(task, batches, progress), maxlen=1)
        return mean.to(torch.promote_types(self._probe.layout.dtype, torch.float32)), targets

    def score(self, task: Task, batches: Batches, *, progress: bool | None = None) -> dict[str, float]:
        """Score the ensemble.

        Returns:
            error, nll, brier, ece and the mean pairwise disagreement of the members; against soft labels (mixup) those
            of them that are defined; for regression the squared error.
        """
        return self.report(task, batches, progress=progress).scores

    def report(self, task: Task, batches: Batches, *, progress: bool | None = None) -> Report:
        """Scores as members are added, of each member alone, and how members differ, in one pass per member."""
        growth, members, chosen, reliability = [], [], [], []
        for own, mean, targets in self._growing(task, batches, progress):
            alone, together = (
                metrics.known(v, targets) if task.probabilities is not identity else None for v in (own, mean)
            )
            members.append(metrics.scores(*alone) if alone else _squared_error(own, targets))
            growth.append(metrics.scores(*together) if together else _squared_error(mean, targets))
            if alone and together:
                chosen.append(alone[0].argmax(1))
                reliability = metrics.reliability(*together) if together[1].ndim == 1 else []
        pairs = metrics.disagreement(torch.stack(chosen)).tolist() if chosen else []
        for k, entry in enumerate(growth if pairs else (), start=1):  # a single member agrees with itself
            entry["disagreement"] = sum(sum(row[:k]) for row in pairs[:k]) / (k * (k - 1)) if k > 1 else 0.0
        return Report(growth, members, pairs, [a.distance(b) for a, b in pairwise(self.members)], reliability)

    def save(self, folder: str | Path) -> None:
        """Write one safetensors file per member, one for shared frozen parameters, and a manifest with hashes and
        provenance.
        """
        folder, manifest = files.place(folder), Path(folder) / MANIFEST
        again = manifest.is_file()
        files.sweep(folder)
        if not again and folder.exists() and not (folder.is_dir() and all(map(_is_member, folder.iterdir()))):
            raise ThalwegError(
                f"{folder} holds something that is no ensemble, and nothing is written over: choose another folder"
            )
        before = _files(manifest, _entries(manifest, self._probe.layout)) if again else set()
        entries = [self._save_member(folder, member) for member in self.members]
        files.save_json(manifest, "ensemble", {"layout": self._probe.layout.to_dict(), "members": entries})
        for stale in before - _files(manifest, entries):
            files.remove(*stale)

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
        entries = _entries(manifest, Layout.of(module))
        return cls(module, [_load_member(manifest, entry) for entry in entries if entry["file"] not in skip])

    def _save_member(self, folder: Path, member: Weights) -> dict[str, Any]:
        """Named by its content, so that a file is never overwritten."""
        digest = member.digest()
        name = f"member-{digest[:16]}.safetensors"
        replace(member, kept={}).save(folder / name, apart=True)
        base = {"base": base_name(member.frozen)} if member.frozen else {}
        return {"file": name, "sha256": digest, "made": dict(member.made), **base}

    def _growing(self, task: Task, batches: Batches, progress: bool | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each member: its predictions, those of the ensemble so far, and the targets."""
        check_task(task)
        count(batches)
        total, first, processes = torch.zeros(()), None, present.get().processes
        new, probe = not any(task is known for known in self._proven), self._probe
        proof = prove_on(probe, lambda batch: task.predictions(probe.module, batch)[0], batches) if new else None
        with Progress("predicting", len(self), progress) as bar:
            # each rank has one member of a round, or perhaps none in the last
            own = (
                [_predictions(probe, w, task, batches) for w in self.members[start + processes.rank :][:1]]
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
        again, _ = _predictions(probe, self.members[-1], task, batches, first=True)
        if again.ndim != values.ndim:  # label maps of several sizes are concatenated by pixels
            again = metrics.rows(again)
        what = "the last member predicts something else by itself than after the others"
        check_alone(probe, again, values[: len(again)], what)
        self._proven.append(task)


def _predictions(
    probe: Probe, member: Weights, task: Task, batches: Batches, first: bool = False
) -> tuple[Tensor, Tensor]:
    """Predictions and targets of one member, of the first batch alone or of all."""
    with Points(probe, task).at(member), seeded(0, batches):
        some = [next(iter(batches))] if first else batches
        return predicted(probe.module, task, some, probe.device, partial(metrics.averaged, task))


def _squared_error(values: Tensor, targets: Tensor) -> dict[str, float]:
    if values.shape != targets.shape:
        raise ThalwegError(
            f"outputs and targets must have one shape to be compared; got {tuple(values.shape)} and "
            f"{tuple(targets.shape)}: reshape one in the task"
        )
    return {"squared_error": float((values - targets.double()).square().mean())}


def _files(manifest: Path, entries: Sequence[Mapping[str, Any]]) -> set[tuple[Path, str]]:
    """The files that a manifest names, and the kind of each."""
    kinds = (("file", "member", "weights"), ("base", "base", "base"))
    return {
        (files.beside(manifest, entry[key], name), kind)
        for entry in entries
        for key, name, kind in kinds
        if key in entry
    }


def _is_member(path: Path) -> bool:
    """Whether it was left by a save that was killed before it wrote the manifest."""
    named = path.suffix == ".safetensors" and path.name.startswith(("member-", "base-"))
    return named and path.is_file() and not path.is_symlink() and files.kind_of(path) in ("weights", "base")


def _entries(manifest: Path, layout: Layout) -> list[dict[str, Any]]:
    content = files.load_json(manifest, "ensemble")
    with files.reading(manifest):
        found = Layout.from_dict(content["layout"])
        entries = [{"file": entry["file"], "sha256": entry["sha256"], **entry} for entry in content["members"]]
    layout.check(found, "the network", f"the ensemble in {manifest.parent}")
    return entries


def _load_member(manifest: Path, entry: Mapping[str, Any]) -> Weights:
    path = files.beside(manifest, entry["file"], "member")
    try:
        member = Weights.load(path)
    except ThalwegError as error:
        raise ThalwegError(f"{error} (or load the others with skip=['{entry['file']}'])") from None
    if member.digest() != entry["sha256"]:
        raise ThalwegError(
            f"{path} is not the member that was saved there: its contents do not match the ensemble's manifest; "
            f"restore it, or load the others with skip=['{entry['file']}']"
        )
    return member
