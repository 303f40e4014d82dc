"""Each call against its plain-torch reference: equal, refused in a sentence, or wrong; and the caller's module
untouched.
"""

import random
from operator import length_hint

import numpy as np
import torch
from differential import reference
from differential.kind import CALLS, Kind, softmax
from differential.picture import picture
from torch import Tensor, nn

import thalweg as tw

DECAY, LR, EPOCHS = 0.05, 0.1, 2
FGE = {"high": 0.1, "low": 0.02, "cycle": 2}


class Wrong(AssertionError):
    """A number that plain torch does not give, or a module that is no longer what it was."""


def has_batch_norm(module: nn.Module) -> bool:
    return any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None for part in module.modules()
    )


def same_state(got: dict[str, Tensor], expected: dict[str, Tensor], kind: Kind, what: str) -> None:
    """By name, wrappers left out; counts of batches depend on how they are counted and are no part of the result."""
    for name, value in expected.items():
        short = name.replace("_orig_mod.", "") if name not in got else name
        short = short.removeprefix("module.") if short not in got else short
        if not name.endswith("num_batches_tracked"):
            close(got[short], value, kind, f"{what} {name}")


def close(got: object, expected: object, kind: Kind, what: str) -> None:
    one, two = (torch.as_tensor(value, dtype=torch.complex128) for value in (got, expected))
    if one.shape != two.shape:
        raise Wrong(f"{what} is {tuple(one.shape)} instead of {tuple(two.shape)}")
    if not torch.allclose(one, two, rtol=kind.tolerance, atol=kind.tolerance, equal_nan=True):
        raise Wrong(f"{what} differs by {float((one - two).abs().max()):.3g}")


def check_fit(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    got = tw.fit(module, task, kind.data(), epochs=EPOCHS, lr=LR, weight_decay=DECAY)
    same_state(got.state_dict(), reference.fit(kind.module, kind.loss, kind.batches(), EPOCHS, LR, DECAY), kind, "fit")


def check_connect(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    a, b = (tw.Weights.of(kind.module(seed)) for seed in (1, 2))
    got = tw.connect(module, tw.Bezier(a, b), task, kind.data(), epochs=EPOCHS, lr=LR, weight_decay=DECAY)
    expected = reference.connect(kind.module, kind.loss, kind.batches(), EPOCHS, LR, DECAY)
    same_state(got.points[1].state_dict(), expected, kind, "bend")


def check_scan(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    a, b = (tw.Weights.of(kind.module(seed)) for seed in (1, 2))
    norm, batches, ts = has_batch_norm(module), kind.data(), [0.0, 0.25, 1.0]
    refresh = batches if norm else None
    got = tw.scan(module, tw.Segment(a, b), task, {"x": batches}, points=ts, weight_decay=DECAY, bn_batches=refresh)
    expected = reference.scan(kind.module, kind.both, kind.batches(), ts, DECAY, norm)
    for quantity, values in got.values["x"].items():
        close(values.tolist(), expected[quantity], kind, quantity)
    if task.metrics is None and "error" not in got.values["x"] and expected["error"][0] >= 0:
        raise Wrong("the error is missing")


def check_walk(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    method = tw.FGE(cycle=tw.Iterations(FGE["cycle"]), lr_max=FGE["high"], lr_min=FGE["low"])
    start = tw.Weights.of(kind.module(1))
    epochs = EPOCHS if length_hint(kind.batches(), 2) > 1 else 2 * EPOCHS
    got = tw.walk(module, task, kind.data(), method, epochs=epochs, start=start, weight_decay=DECAY).members
    expected = reference.walk(kind.module, kind.loss, kind.batches(), epochs, **FGE, weight_decay=DECAY)
    assert len(got) == len(expected) > 1
    for number, (member, state) in enumerate(zip(got, expected, strict=True), start=1):
        same_state(member.state_dict(), state, kind, f"member {number}")


def check_ensemble(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    members = [tw.Weights.of(kind.module(seed)) for seed in (1, 2)]
    got, targets = tw.Ensemble(module, members).predict(task, kind.data())
    scores = tw.Ensemble(module, members).score(task, kind.data())
    expected, wanted = reference.ensemble(kind.module, kind.both, kind.batches(), kind.probabilities)
    close(got, expected, kind, "probabilities")
    close(targets, wanted, kind, "targets")
    for name, value in reference.scores(expected, wanted, kind.probabilities is not softmax).items():
        close(scores[name], value, kind, name)


def check_refresh(kind: Kind, module: nn.Module, task: tw.Task) -> None:
    middle = tw.average([tw.Weights.of(kind.module(seed)) for seed in (1, 2)])
    got = tw.update_bn(module, middle, kind.data(), task)
    same_state(got.state_dict(), reference.refresh(kind.module, kind.both, kind.batches()), kind, "statistics")


CHECKS = dict(
    zip(CALLS, (check_fit, check_connect, check_scan, check_walk, check_ensemble, check_refresh), strict=True)
)


def used_module(kind: Kind, call: str) -> nn.Module:
    """The caller's: with gradients of its own; for `fit` where training starts, elsewhere any of that kind."""
    module = kind.module(1 if call == "fit" else 3)
    for parameter in module.parameters():
        if parameter.requires_grad and not isinstance(parameter, nn.parameter.UninitializedParameter):
            parameter.grad = torch.full_like(parameter, 0.5)
    return module


def outcome(kind: Kind, call: str) -> str:
    """'equal', or 'refused' with the sentence; anything wrong raises."""
    module = used_module(kind, call)
    task, before, drawn = (
        kind.task(module),
        picture(module),
        (torch.get_rng_state(), random.getstate(), np.random.get_state()[1]),
    )
    try:
        with kind.around(module):
            CHECKS[call](kind, module, task)
        said = "equal"
    except Wrong:
        raise
    except Exception as error:
        ours = isinstance(error, tw.ThalwegError)
        if not ours and not any(
            note.startswith("thalweg gave the network") for note in getattr(error, "__notes__", [])
        ):
            raise
        said = f"refused: {error}"
    if picture(module) != before:
        raise Wrong(f"the caller's module was changed ({said})")
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1])
    if not torch.equal(drawn[0], after[0]) or drawn[1] != after[1] or not np.array_equal(drawn[2], after[2]):
        raise Wrong(f"the caller's random state was changed ({said})")
    return said


def agrees(kind: Kind, call: str) -> None:
    said = outcome(kind, call)
    assert said.split(":")[0] == kind.expected(call), said
