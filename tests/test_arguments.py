"""Every argument of everything public, replaced by what it cannot be: a sentence that names it, no Python error."""

import inspect
import pickle
import re
from dataclasses import replace
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import thalweg as tw

WRONG = {
    "None": None,
    "a string": "nonsense",
    "a number": 7,
    "a fraction": -0.5,
    "an empty list": [],
    "an object": object(),
    "an array": np.arange(3.0),
    "a tensor": torch.ones(2),
    "a dict with integer keys": {1: 2},
    "a class": dict,
    "a list of strings": ["a"],
    "a list of None": [None],
    "a huge number": 10**30,
    "True": True,
    "bytes": b"x",
    "a set": {1},
    "an empty dict": {},
}
SLOW = ("epochs", "budget", "points", "bends", "n", "classes")  # a huge one is not wrong, but takes for ever
OPEN = ("on_epoch", "optimizer", "make", "jobs")  # a class is a function too, whose own error is shown
NUMBERS = (
    "accumulate bends budget classes clip cycle cycles epochs last_epoch lr lr_max margin multiple points rank seed"
)
RIGHT = {  # which of these values an argument may be, alone or of one function only
    "None": "aligned ax axes bn_batches budget clip coefficients compile compute data graph grid groups held_out "
    "lr_max:WarmupCosine margin metric metrics on_epoch optimizer overlay points:scan probabilities quantity run "
    "schedule score size start task:update_bn tolerance train:curve_ensemble watch",
    "a number": f"{NUMBERS} steps warmup weight_decay x y",
    "a fraction": "x y",
    "a huge number": "clip cycle cycles last_epoch lr:FGE lr:SWA lr_max margin multiple:Comparison.networks warmup "
    "weight_decay x y",
    "a string": "run",
    "True": "compile graph stream",
    "a set": "keep multiples points:scan seeds",
    "a dict with integer keys": "keep multiples points:scan seeds",  # its keys
    "an empty dict": "keep members:SWAG metrics overlay units watch",
    "an empty list": "keep members:SWAG",
}
REFUSALS = (tw.ThalwegError, ValueError)  # the second by networks, which know nothing of the package
TRUTHS = ("progress", "same_t", "maximise", "align", "aligned", "averaged")  # by what `if` makes of them
UNSEEN = {  # not looked at in these calls: there is no batch normalization, nothing is aligned or called yet
    "update_bn": ("batches",),
    "compare": ("bn_batches",),
    "soup": ("bn_batches",),
    "scan a curve": ("bn_batches", "overlay"),
    "scan a plane": ("bn_batches",),
    "barriers": ("bn_batches", "groups"),
    "Task": ("loss", "predict", "metrics", "probabilities", "size"),
    "Collector": ("module", "scheduler"),
    "FGE": ("cycle",),
    "SWA": ("cycle",),
}
TOLERATED = {  # accepted although they are wrong: take one away with the defect
    "Comparison.score": {"multiple": ["True", "a fraction"], "name": WRONG},
    "Comparison.networks": {"multiple": WRONG},
    "compare": {"seeds": ["bytes"]},
    "walk": {"start": ["a list of None"], "watch": ["an empty list"]},
    "scan a plane": {"overlay": ["an empty list"]},
    "update_bn": {"task": ["an empty dict", "an empty list"]},
    "figures.growth": {"budget": ["True", "a fraction", "an empty dict", "an empty list"]},
    "figures.trace": {"quantity": ["an empty dict", "an empty list"]},
}
NAMED = {  # how a sentence speaks of an argument if not by its name
    "module": "the network must be",
    "run": "cannot be a path",
    "lr": "learning rate|needs lr > 0",
    "weight_decay": "the loss became nan",
    "coefficients": "one coefficient per point",
    "quantity": r"ha(s|ve) no .* on 'data'",
    "data": r"ha(s|ve) no '.*' on |the batches|a batch must be",
    "groups": "a group maps",
    "points": r"t must|point \d must|a fitted plane needs",
    "a": "the first point must",
    "b": "the second must|align needs at least 1 network",
    "c": "the third must",
    "start": "a walk starts from",
    "target": "a scan needs a curve, a plane",
    "weights": "must be Weights|needs at least",
    "members": "member 1 must be Weights|what SWAG collects must be",
    "scan": "a figure needs a Scan",
    "scans": "a figure needs a Scan",
    "ax": "this figure needs 1 axes",
    "found": "this report has none",
    "score": "name must be",
} | dict.fromkeys(("batches", "bn_batches", "held_out", "test", "train"), "a batch must be|the batches")


def may_be(name, argument, label):
    """Whether a call takes one of these values, or does not look at it."""
    if argument in (*TRUTHS, *UNSEEN.get(name, ())) or label in TOLERATED.get(name, {}).get(argument, ()):
        return True
    if argument == "compute":
        return label == "None"
    listed = [one.partition(":") for one in RIGHT.get(label, "").split()]
    return any(argument == key and name.startswith(function) for key, _, function in listed)


def network(seed=0):
    torch.manual_seed(int(seed))
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))


def made():
    """Calls by name, with arguments that work."""
    torch.manual_seed(0)
    train = [(torch.randn(8, 2), torch.randint(3, (8,))) for _ in range(2)]
    task, module = tw.classification(), network()
    a, b, c = (tw.Weights.of(network(seed)) for seed in (1, 2, 3))
    curve, plane, fge = tw.Bezier(a, b), tw.Plane(a, b, c), tw.FGE(tw.Iterations(2), 0.1, 0.01)
    walk = tw.walk(module, task, train, fge, epochs=2, watch={"data": train})
    profile = tw.scan(module, curve, task, train, points=3)
    surface = tw.scan(module, plane, task, train, grid=(2, 2))
    report = replace(tw.Ensemble(module, [a, b]).report(task, train), epochs=[1, 2])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    methods = {"methods": [tw.Independent()], "budget": 1, "multiples": (1,), "seeds": (0,), "lr": 0.1}
    comparison = tw.compare(network, task, train, train, **methods)
    matrix = tw.barriers(module, [a, b], task, train, points=3)
    ensemble, scheduler = tw.Ensemble(module, [a, b]), tw.WalkScheduler(optimizer, fge, steps=2, epochs=2)
    common = {"module": module, "task": task}
    entry = {"method": "Independent", "multiple": 1}
    return {
        "fit": (tw.fit, {**common, "batches": train, "epochs": 1, "lr": 0.1}),
        "connect": (tw.connect, {**common, "curve": curve, "batches": train, "epochs": 1, "lr": 0.1}),
        "walk": (tw.walk, {**common, "batches": train, "method": fge, "epochs": 2}),
        "compare": (tw.compare, {"make": network, "task": task, "train": train, "test": train, **methods}),
        "scan a curve": (tw.scan, {**common, "target": curve, "data": train, "points": 3}),
        "scan a plane": (tw.scan, {**common, "target": plane, "data": train, "grid": (2, 2), "overlay": {"x": curve}}),
        "soup": (tw.soup, {**common, "weights": [a, b], "held_out": train}),
        "barriers": (tw.barriers, {**common, "weights": [a, b], "data": train, "points": 3}),
        "curve_ensemble": (
            tw.curve_ensemble,
            {**common, "curve": curve, "test": train, "bn_batches": train, "points": 2},
        ),
        "align": (tw.align, {**common, "a": a, "b": b, "batches": train}),
        "symmetries": (tw.symmetries, {**common, "batch": train[0]}),
        "average": (tw.average, {"weights": [a, b]}),
        "update_bn": (tw.update_bn, {**common, "weights": a, "batches": train}),
        "together": (tw.together, {}),
        "classification": (tw.classification, {}),
        "Task": (tw.Task, {"loss": task.loss, "predict": task.predict, "metrics": {}, "units": {}}),
        "Compute": (tw.Compute, {}),
        "Bezier": (tw.Bezier, {"start": a, "end": b}),
        "Segment": (tw.Segment, {"start": a, "end": b}),
        "Plane": (tw.Plane, {"a": a, "b": b, "c": c}),
        "FGE": (tw.FGE, {"cycle": 2, "lr_max": 0.1, "lr_min": 0.01}),
        "Snapshot": (tw.Snapshot, {"cycles": 2, "lr_max": 0.1}),
        "SWA": (tw.SWA, {"lr": 0.1}),
        "SWAG": (tw.SWAG, {"members": [a, b]}),
        "WarmupCosine": (tw.WarmupCosine, {"lr_max": 0.1}),
        "Ensemble": (tw.Ensemble, {"module": module, "members": [a, b]}),
        "WalkScheduler": (tw.WalkScheduler, {"optimizer": optimizer, "method": fge, "steps": 2, "epochs": 2}),
        "Collector": (tw.Collector, {"module": module, "scheduler": scheduler}),
        "Weights.of": (tw.Weights.of, {"module": module}),
        "Weights.from_state": (tw.Weights.from_state, {"state": module.state_dict(), "module": module}),
        "Weights.load_into": (a.load_into, {"module": network()}),
        "Weights.distance": (a.distance, {"other": b}),
        "Curve.point": (curve.point, {"t": 0.5}),
        "Curve.spaced": (curve.spaced, {"points": 3}),
        "Plane.point": (plane.point, {"x": 0.5, "y": 0.5}),
        "Plane.project": (plane.project, {"weights": a}),
        "Plane.path": (plane.path, {"curve": curve}),
        "Plane.fit": (tw.Plane.fit, {"points": [a, b, c]}),
        "Ensemble.score": (ensemble.score, {"task": task, "batches": train}),
        "Ensemble.predict": (ensemble.predict, {"task": task, "batches": train}),
        "Comparison.score": (comparison.score, {**entry, "name": "error"}),
        "Comparison.networks": (comparison.networks, entry),
        "Comparison.titled": (comparison.titled, {"method": "Independent"}),
        "Report.equivalents": (report.equivalents, {"reference": report}),
        "Barriers.between": (matrix.between, {"data": "data"}),
        "Scan.from_dict": (tw.Scan.from_dict, {"entry": profile.to_dict()}),
        "figures.profile": (tw.figures.profile, {"scans": {"a": profile}}),
        "figures.surface": (tw.figures.surface, {"scan": surface}),
        "figures.surfaces": (tw.figures.surfaces, {"scans": {"a": surface}}),
        "figures.trace": (tw.figures.trace, {"trace": walk.traces[0]}),
        "figures.growth": (tw.figures.growth, {"reports": {"a": report}}),
        "figures.budget": (tw.figures.budget, {"comparison": comparison}),
        "figures.reliability": (tw.figures.reliability, {"found": report}),
        "figures.barriers": (tw.figures.barriers, {"found": matrix}),
        "models.preresnet": (tw.models.preresnet, {"depth": 20}),
    }


@pytest.fixture(scope="module")
def calls():
    return made()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", re.findall(r'\n        "([^"]+)": \(', inspect.getsource(made)))
def test_wrong_arguments_are_refused_by_name(name, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, base = calls[name]
    known = {name: one for name, one in inspect.signature(function).parameters.items() if one.annotation is not Any}
    problems = []
    for argument, label in product(known, WRONG):
        if (label == "a huge number" and argument in SLOW) or (label == "a class" and argument in OPEN):
            continue
        several = known[argument].kind is inspect.Parameter.VAR_POSITIONAL
        try:
            function(*([WRONG[label]] * several), **{**base, **({} if several else {argument: WRONG[label]})})
        except REFUSALS[name.startswith("models.")] as error:
            named = rf"\b{argument}{' must' * (len(argument) < 3)}\b|{NAMED.get(argument, '^$')}"  # "a" is a word too
            problems += [] if re.search(named, str(error)) else [f"{argument}={label} is not named: {error}"]
        except Exception as error:
            problems.append(f"{argument}={label} gave {type(error).__name__}: {error}")
        else:
            problems += [] if may_be(name, argument, label) else [f"{argument}={label} was accepted"]
    assert not problems, "\n".join(problems)
    plt.close("all")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("average", {"coefficients": 7}, r"coefficients must be Sequence\[float\] or None; got 7: see help\('"),
        ("Weights.load_into", {"module": None}, "module must be Module; got None"),
        ("walk", {"watch": [1]}, r"watch must be Mapping\[str, Batches\] or None; got list"),
        ("scan a plane", {"overlay": [1]}, r"overlay must be Mapping\[str, .*\] or None; got list"),
        ("compare", {"methods": 7}, r"methods must be Sequence\[.*\]; got 7"),
        ("figures.profile", {"ax": "left"}, "ax must be Axes or None; got 'left'"),
        ("figures.growth", {"reports": {}}, "reports must not be empty; got dict"),
        ("Comparison.titled", {"method": "Mine"}, "there is no method 'Mine'"),
    ],
)
def test_wrong_argument_message(name, wrong, said, calls):
    function, base = calls[name]
    with pytest.raises(tw.ThalwegError, match=said):
        function(**{**base, **wrong})


def test_unknown_argument_names_are_type_errors(calls):
    function, base = calls["average"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'weighs'"):
        function(**base, weighs=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weights'"):
        function()


def test_argument_check_leaves_errors_of_user_code(calls):
    """Also where an argument is of another type than it should be, since that need not be the reason."""
    function, base = calls["fit"]

    def loss(outputs, targets):
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        function(**{**base, "task": tw.Task(loss), "progress": 0})


def test_public_functions_can_be_pickled_and_are_documented():
    assert pickle.loads(pickle.dumps(tw.fit)) is tw.fit
    assert pickle.loads(pickle.dumps(tw.Weights.of)) == tw.Weights.of
    assert "epochs: int" in str(inspect.signature(tw.fit))
    assert tw.scan.__doc__.startswith("Measure loss and metrics")


def test_tasks_and_errors_can_be_pickled():
    """As a pool of processes does; it hangs on an error that it cannot read."""
    for task in (tw.classification(0.1), tw.regression(), tw.language_modelling()):
        assert pickle.loads(pickle.dumps(task)).probabilities is task.probabilities
    error = tw.Diverged("the loss became nan", step=3, t=0.5, lr=0.1, last_good=tw.Weights.of(network()))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.step, again.t, again.lr, again.members) == ("the loss became nan", 3, 0.5, 0.1, [])
    assert torch.equal(again.last_good.vector, error.last_good.vector)


def test_warnings_are_about_the_line_of_the_caller(calls, tmp_path):
    function, base = calls["scan a plane"]
    with pytest.warns(UserWarning, match="not everything drawn lies in this plane") as caught:
        function(**{**base, "overlay": {"far": tw.Weights.of(network(9))}})
    kept = tw.fit(network(), base["task"], base["data"], epochs=1, lr=0.1, keep=[1])
    with pytest.warns(UserWarning, match="without the kept epochs 1") as saved:
        kept.save(tmp_path / "w.safetensors")
    assert {warning.filename for warning in [*caught, *saved]} == {__file__}
