"""With another default device around it, a call computes what it computes without: where the network is."""

import pytest
import torch
from zoo import ZOO

import thalweg as tw

CASE = ZOO["conv_bn"]
TASK, DATA, MODULE = CASE.task, CASE.batches(), CASE.module(1)
A, B = CASE.ends()
CALLS = {
    "fit": lambda: tw.fit(MODULE, TASK, DATA, epochs=2, lr=0.05).vector,
    "connect": lambda: tw.connect(MODULE, tw.Bezier(A, B), TASK, DATA, epochs=2, lr=0.05).bends[0].vector,
    "arclength": lambda: (
        tw.connect(MODULE, tw.PolyChain(A, B), TASK, DATA, epochs=1, lr=0.05, loss="arclength").bends[0].vector
    ),
    "walk": lambda: (
        tw.walk(
            MODULE, TASK, DATA, tw.FGE(cycle=tw.Iterations(2), lr_max=0.05, lr_min=0.01), epochs=2, watch={"w": DATA}
        )
        .members[-1]
        .vector
    ),
    "scan": lambda: tw.scan(MODULE, tw.Bezier(A, B), TASK, DATA, points=3, bn_batches=DATA).to_csv(),
    "adaptive": lambda: tw.scan(MODULE, tw.Segment(A, B), TASK, DATA, points="adaptive", bn_batches=DATA).to_csv(),
    "plane": lambda: tw.scan(MODULE, tw.Plane.around(A), TASK, DATA, grid=(2, 2), margin=0.1, bn_batches=DATA).to_csv(),
    "barriers": lambda: tw.barriers(MODULE, [A, B], TASK, DATA, points=3, align=True, bn_batches=DATA).to_csv(),
    "soup": lambda: tw.soup(MODULE, [A, B], TASK, DATA, bn_batches=DATA).vector,
    "align": lambda: tw.align(MODULE, A, B, TASK, DATA).vector,
    "by activations": lambda: tw.align(MODULE, A, B, TASK, DATA, by="activations").vector,
    "update_bn": lambda: torch.cat([*tw.update_bn(MODULE, tw.average([A, B]), DATA).buffers.values()][:2]),
    "ensemble": lambda: repr(tw.Ensemble(MODULE, [A, B]).report(TASK, DATA, bn_batches=DATA)),
    "probabilities": lambda: tw.Ensemble(MODULE, [A, B]).probabilities(DATA[0][0]).probabilities,
    "calibrate": lambda: tw.Ensemble(MODULE, [A, B]).score(TASK, DATA, held_out=DATA),
    "swag": lambda: tw.SWAG([A, B]).sample(1)[0].vector,
    "curve_ensemble": lambda: repr(
        tw.curve_ensemble(MODULE, tw.Segment(A, B), TASK, DATA, points=3, bn_batches=DATA, train=DATA)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_give_the_same_inside_another_default_device(name):
    alone = CALLS[name]()
    with torch.device("meta"):
        inside = CALLS[name]()
    assert torch.equal(alone, inside) if isinstance(alone, torch.Tensor) else alone == inside


def test_interleaved_jobs_give_the_same_inside_another_default_device():
    with torch.device("meta"):
        found = tw.together(CALLS["fit"], CALLS["connect"])
    assert torch.equal(found[0], CALLS["fit"]())
    assert torch.equal(found[1], CALLS["connect"]())
