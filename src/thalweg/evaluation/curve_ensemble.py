"""Ensembles of points on one curve, before and after temperature scaling."""

import torch
from torch import Tensor, nn

from ..batches import Batches, count
from ..errors import ThalwegError
from ..results import CurveEnsemble
from ..runtime.compute import Call, Compute
from ..runtime.rng import MEASURING, seeded, undisturbed
from ..runtime.streams import on_side_stream
from ..tasks import Task, check_task, outputs_of, softmax, token_softmax
from ..weightspace.curves import Curve
from ..weightspace.probe import Probe
from . import metrics
from .calibration import fit_scale, fit_temperature
from .measure import (
    Measurement,
    Points,
    check_alone,
    check_finite,
    check_loss_alone,
    check_order,
    check_statistics,
    checked_weight_decay,
    predicted,
    prove_measuring,
)

HELD_OUT = "held-out data"
CROSS_FITTED = "cross-fitted on two halves of the test set"
Predicted = list[tuple[Tensor, Tensor]]  # logits and labels, of one point after another


def curve_ensemble(
    module: nn.Module,
    curve: Curve,
    task: Task,
    test: Batches,
    *,
    bn_batches: Batches | None = None,
    points: int = 50,
    train: Batches | None = None,
    held_out: Batches | None = None,
    weight_decay: float = 0.0,
    compute: Compute | None = None,
    progress: bool | None = None,
) -> CurveEnsemble:
    """Ensemble equally spaced points of a curve, before and after temperature scaling.

    Args:
        module: A network of the same architecture; it is not changed.
        curve: The trained curve.
        task: A classification task.
        test: The data to score on.
        bn_batches: Batches as in training, augmentation included, for the batch-norm statistics at each point; not
            needed for networks without batch norm.
        points: The number of points.
        train: Training data for the train loss at each point; by default `bn_batches`.
        held_out: Data neither trained nor tested on, to fit the temperatures. Without it they are cross-fitted: each
            half of the test set is scaled by temperatures fitted on the other, and the result says so.
        weight_decay: The one used in training; it is part of the train loss that temperatures follow.
        compute: How to compute statistics and train loss; see `Compute`.
        progress: Whether to show a progress bar. By default it is shown on a terminal.
    """
    check_task(task)
    weight_decay = checked_weight_decay(weight_decay)
    if task.probabilities not in (None, softmax, token_softmax):
        raise ThalwegError(
            "temperatures divide the logits of a softmax, but this task has probabilities= of its own: leave it out"
        )
    count(test, "the test batches")
    if bn_batches is not None:
        count(bn_batches, "bn_batches")
    train = bn_batches if train is None else train
    if train is None:
        raise ThalwegError("temperatures follow the train loss at each point: give its data as train= or bn_batches=")
    count(train, "the batches of train")
    call = Call.of(compute, progress)
    compute = call.compute
    probe, ts = Probe(module, None, compute), curve.spaced(points)
    compute.check(probe.device)
    probe.layout.check(curve.layout, "the network", "the curve")
    check_statistics(probe, bn_batches)
    losses: dict[str, list[float]] = {"train loss": [], "train data loss": []}
    tested, held = Predicted(), Predicted()
    wanted = [(tested, test, "the test batches"), (held, held_out, "the held-out batches")]
    points_of = Points(probe, task, bn_batches, compute)
    measure = Measurement(probe.module, task, train, probe.device, compute)
    bar = call.bar("predicting along the curve", len(ts))
    with on_side_stream(probe.device, call.context.stream), bar:
        proof = prove_measuring(probe, task, test, compute)
        for t in ts:
            where = f"the point at t = {t:.4g}"
            with points_of.at(curve.point(t)) as square:
                with undisturbed(train, seed=MEASURING):
                    measure()
                data_loss = measure.means()["data_loss"]
                losses["train data loss"].append(data_loss)
                losses["train loss"].append(data_loss + 0.5 * weight_decay * float(square))
                for found, batches, name in wanted:
                    if batches is not None:
                        with seeded(MEASURING, batches):
                            found.append(_logits(probe, task, batches, where))
                        check_order(found[0][1], found[-1][1], name)
            bar.advance()
        proof.again()
        fresh = Probe(module, None, compute)
        again = Measurement(fresh.module, task, train, fresh.device, compute)
        with Points(fresh, task, bn_batches, compute).at(curve.point(ts[-1])):
            with undisturbed(train, seed=MEASURING):
                again(first=True)
            with seeded(MEASURING, test):
                alone, _ = _logits(fresh, task, [next(iter(test))], where)
    what = f"the point t = {ts[-1]:g} predicts something else by itself than after the others"
    check_alone(fresh, alone, tested[-1][0][: len(alone)], what)
    check_loss_alone(fresh, again.early, measure.early, "train")
    return _assemble(ts, losses, tested, held)


def _folds(tested: Predicted, held: Predicted) -> list[tuple[list[Tensor], Tensor, Tensor]]:
    """Logits and labels to fit temperatures on, and the indices of the test data to scale with them."""
    everything = torch.arange(len(tested[0][1]), device="cpu")
    if held:
        return [([x for x, _ in held], held[0][1], everything)]
    halves = everything[::2], everything[1::2]
    return [([x[a] for x, _ in tested], tested[0][1][a], b) for a, b in (halves, halves[::-1])]


def _assemble(ts: list[float], losses: dict[str, list[float]], tested: Predicted, held: Predicted) -> CurveEnsemble:
    logits, labels, folds = [x for x, _ in tested], tested[0][1], _folds(tested, held)
    alone = [x.softmax(1) for x in logits]
    temperatures = {}
    nll = {}
    scores = {}
    reliability = {}
    relative = {"none": [1.0] * len(ts), "one": [1.0] * len(ts)}
    for name, values in losses.items():
        positive = [max(loss, 1e-6) for loss in values]  # a loss of zero has no inverse
        relative |= {name: positive, f"inverse {name}": [1 / loss for loss in positive]}
    for scaling in (*relative, "per point"):
        each = torch.ones(len(labels), len(ts), dtype=torch.float64, device="cpu")
        for fit_logits, fit_labels, where in folds:
            found = _temperatures(scaling, fit_logits, fit_labels, relative.get(scaling))
            each[where] = torch.tensor(found, dtype=torch.float64, device="cpu")
        scaled = [(x / each[:, k : k + 1]).softmax(1) for k, x in enumerate(logits)]
        mean = torch.stack(scaled).mean(0)
        temperatures[scaling] = each.mean(0).tolist()
        nll[scaling] = [metrics.nll(p, labels) for p in scaled]
        scores[scaling] = metrics.scores(mean, labels)
        reliability[scaling] = metrics.reliability(mean, labels)
    return CurveEnsemble(
        t=ts,
        train_loss=losses["train loss"],
        train_data_loss=losses["train data loss"],
        error=[metrics.error(p, labels) for p in alone],
        pair_error=[metrics.error((alone[0] + p) / 2, labels) for p in alone],
        temperatures=temperatures,
        nll=nll,
        scores=scores,
        reliability=reliability,
        fitted_on=HELD_OUT if held else CROSS_FITTED,
    )


def _temperatures(scaling: str, logits: list[Tensor], labels: Tensor, relative: list[float] | None) -> list[float]:
    """Those fitted for each point, or a common multiple of relative ones."""
    if relative is None:
        return [fit_temperature(x, labels) for x in logits]
    mean = sum(relative) / len(relative)
    relative = [factor / mean for factor in relative]
    scale = 1.0 if scaling == "none" else fit_scale(logits, labels, relative)
    return [scale * factor for factor in relative]


def _logits(probe: Probe, task: Task, batches: Batches, where: str) -> tuple[Tensor, Tensor]:
    outputs, targets = predicted(
        probe.module, task, batches, probe.device, lambda outputs, wanted: outputs_of(outputs).double()
    )
    check_finite(outputs, where, probe.weights(), batches)
    if outputs.shape == targets.shape and outputs.ndim > 1 and bool(metrics.one_hot(targets).all()):
        targets = targets.double().argmax(1)
    if not metrics.are_labels(outputs, targets):
        raise ThalwegError(
            "a curve ensemble scales logits (count, classes, ...) for labels (count, ...); it got "
            f"{tuple(outputs.shape)} and {targets.dtype} {tuple(targets.shape)}"
        )
    return metrics.labelled(outputs, targets)
