"""The trace of a walk and its file."""

from zoo import ZOO

import thalweg as tw

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def test_trace_save_and_load(tmp_path):
    case = ZOO["mlp"]
    walk = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=2, watch={"test": case.batches()})
    walk.traces[0].save(tmp_path / "trace.json")
    assert tw.Trace.load(tmp_path / "trace.json").to_dict() == walk.traces[0].to_dict()


def test_walk_and_checkpoints_print_in_a_line():
    case = ZOO["mlp"]
    kept = tw.fit(case.module(1), case.task, case.batches(), epochs=2, lr=0.1, keep=[1]).kept
    walk = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=2, start=kept[1])
    collected = walk.traces[0].collected
    assert repr(walk) == f"Walk(members: {len(collected)}, Trace(collected={collected}, steps={len(case.batches())}))"
    assert repr(kept[1]).endswith(", kind='SGD', epoch=1)")
