"""The trace of a walk and its file."""

from zoo import ZOO

import thalweg as tw

FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


def test_trace_save_and_load(tmp_path):
    case = ZOO["mlp"]
    walk = tw.walk(case.module(1), case.task, case.batches(), FGE, epochs=2, watch={"test": case.batches()})
    walk.traces[0].save(tmp_path / "trace.json")
    assert tw.Trace.load(tmp_path / "trace.json").to_dict() == walk.traces[0].to_dict()
