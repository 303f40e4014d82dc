"""Every verb with models of the libraries people use: a curve lower than the straight line, and the model left as it
was.
"""

import pytest
import torch
from library_models import KINDS
from zoo import bits, same_bits

import thalweg as tw

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
LOW = 0.3  # the share of the line's barrier that a curve may have; over three pairs of seeds, 0.18 was the most


@pytest.mark.parametrize("name", KINDS)
def test_library_models_in_every_call(name, tmp_path):
    kind = KINDS[name]
    module, batches = kind.module(0), kind.batches()
    module.register_forward_hook(lambda *_: None)
    next(module.children()).eval()
    task, before = kind.task(module), bits(module)
    a, b = (tw.fit(kind.module(seed), task, batches, seed=seed, **kind.settings()) for seed in (1, 2))
    curve = tw.connect(module, tw.Bezier(a, b), task, batches, **kind.settings(2))
    refresh = batches if a.layout.statistics else None
    line, bent = (
        tw.scan(module, path, task, {"train": batches}, points=9, bn_batches=refresh)
        for path in (tw.Segment(a, b), curve)
    )
    barriers = [scan.summary()["train"]["loss"]["barrier"] for scan in (line, bent)]
    assert barriers[0] > 0.1
    assert barriers[1] < LOW * barriers[0]

    plane = tw.scan(
        module, tw.Plane(a, b, curve.bends[0]), task, {"train": batches}, grid=(3, 3), margin=0.0, bn_batches=refresh
    ).values["train"]["loss"]
    assert plane.shape == (3, 3)
    assert plane[0, 0] == pytest.approx(line.values["train"]["loss"][0], rel=1e-4)

    fge = tw.FGE(cycle=tw.Iterations(2), lr_max=kind.lr / 2, lr_min=kind.lr / 20)
    members = tw.walk(module, task, batches, fge, epochs=1, start=a, optimizer=torch.optim.Adam).members
    ensemble = tw.Ensemble(module, members)
    assert len(ensemble) == len(batches) // 2
    assert ensemble.score(task, batches)["error"] < 0.5

    curve.save(tmp_path / "curve.safetensors")
    again = tw.Curve.load(tmp_path / "curve.safetensors")
    assert [point.digest() for point in again.points] == [point.digest() for point in curve.points]
    ensemble.save(tmp_path / "ensemble")
    probabilities = [e.predict(task, batches)[0] for e in (ensemble, tw.Ensemble.load(tmp_path / "ensemble", module))]
    assert torch.equal(*probabilities)
    assert same_bits(before, bits(module))


def test_stochastic_depth_is_on_in_training_and_off_in_scans():
    kind = KINDS["timm, layer norm, stochastic depth"]
    with_it, without = kind.module(0), kind.module(0)
    for part in without.modules():
        if hasattr(part, "drop_prob"):
            part.drop_prob = 0.0
    curve, batches = tw.Bezier(*(tw.Weights.of(kind.module(seed)) for seed in (1, 2))), kind.batches()[:3]
    settings = {"epochs": 2, "lr": 1e-2}
    first, again, other = (
        tw.connect(m, curve, tw.classification(), batches, **settings) for m in (with_it, with_it, without)
    )
    assert torch.equal(first.bends[0].vector, again.bends[0].vector)
    assert not torch.equal(first.bends[0].vector, other.bends[0].vector)
    scans = [tw.scan(m, first, tw.classification(), {"train": batches}, points=3) for m in (with_it, without)]
    assert scans[0].values["train"]["loss"].tolist() == scans[1].values["train"]["loss"].tolist()


def test_tied_weights_of_library_models_stay_tied():
    kind = KINDS["transformers, causal, tied"]
    weights, module = tw.Weights.of(kind.module(1)), kind.module(2)
    assert weights.layout.aliases == (("lm_head.weight", "transformer.wte.weight"),)
    tw.average([weights, tw.Weights.of(kind.module(3))]).load_into(module)
    assert module.lm_head.weight is module.transformer.wte.weight
