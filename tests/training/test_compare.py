"""Equal budgets: what is charged, what is shared, what is pooled."""

import pytest
import torch
from zoo import ZOO

import thalweg as tw
from thalweg.training import compare as module_under_test
from thalweg.training.schedules import decay

METHODS = [
    tw.Ind(),
    tw.Snapshot(cycles=2, lr_max=0.1),
    tw.FGE(cycle=tw.Iterations(2), lr_max=0.05, lr_min=0.005, starts=(0.5, 0.7)),
    tw.SWA(lr=0.05, starts=(0.6,)),
]


def run(methods=METHODS, **settings):
    animal = ZOO["conv_bn"]
    batches = animal.batches()
    settings = {"budget": 10, "seeds": (1, 2, 3), "refresh": batches, "lr": 0.1, **settings}
    return tw.compare(animal.module, animal.task, batches, batches, methods, **settings)


@pytest.fixture(scope="module")
def result():
    return run()


def test_no_method_spends_more_than_the_budget(result):
    epochs = {name: entry["epochs"] for name, entry in result.entries.items()}
    assert epochs == {"Ind": 10, "Snapshot": 10, "FGE": 7 + 2 * 1, "SWA": 10}
    members = {name: entry["members"] for name, entry in result.entries.items()}
    assert members == {"Ind": 1, "Snapshot": 2, "FGE": 2 * 2, "SWA": 1}


def test_shared_epochs_give_what_each_method_would_find_alone(result):
    """FGE in the comparison equals a fit and a walk by hand."""
    animal = ZOO["conv_bn"]
    batches, fge = animal.batches(), METHODS[2]
    pool = []
    for seed in (1, 2):
        trained = tw.fit(animal.module(seed), animal.task, batches, epochs=7, schedule=decay(0.1, 10, 3), seed=seed, keep=[5, 7])
        starts = [trained.kept[5], trained.kept[7]]
        pool.append(tw.walk(animal.module(seed), animal.task, batches, fge, epochs=1, start=starts, seed=seed))
        alone = tw.Ensemble(animal.module(seed), pool[-1]).score(animal.task, batches)
        assert result.entries["FGE"]["runs"][seed - 1] == pytest.approx(alone, rel=1e-12)
    both = tw.Ensemble(animal.module(1), pool[0] + pool[1]).score(animal.task, batches)
    assert result.entries["FGE"]["pooled"]["2"] == pytest.approx(both, rel=1e-12)


def test_what_is_shared_is_trained_once(monkeypatch):
    fits = []
    original = module_under_test.fit
    monkeypatch.setattr(module_under_test, "fit", lambda *a, **k: fits.append(k["epochs"]) or original(*a, **k))
    run(seeds=(1,), multiples=(1,))
    assert fits == [10]
    run(methods=METHODS[2:], seeds=(1,), multiples=(1,))
    assert fits == [10, 7]
    run(methods=METHODS[1:2], seeds=(1,), multiples=(1,))
    assert fits == [10, 7]


def test_the_table_has_a_spread_at_one_budget_only(result):
    runs = [entry["error"] for entry in result.entries["Ind"]["runs"]]
    mean, spread = result.score("Ind", 1)
    assert mean == pytest.approx(sum(runs) / 3)
    assert spread == pytest.approx(torch.tensor(runs).double().std().item())
    assert result.score("Ind", 2)[1] != result.score("Ind", 2)[1]
    lines = result.table().splitlines()
    assert lines[0].split() == ["error", "(%)", "epochs", "per", "run", "networks", "per", "run", "1B", "2B", "3B"]
    assert "±" in lines[2]


def test_a_comparison_survives_its_file(result, tmp_path):
    result.save(tmp_path / "c.json")
    assert tw.Comparison.load(tmp_path / "c.json").to_dict() == result.to_dict()


def test_bare_classes_take_the_papers_settings():
    result = run(methods=[tw.Ind, tw.Snapshot, tw.SWA], seeds=(1,), multiples=(1,))
    assert result.entries["Snapshot"]["settings"] == "Snapshot(cycles=5, lr_max=0.1)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": []}, "compare needs a method"),
        ({"seeds": (1, 2)}, "as many seeds as the largest multiple"),
        ({"methods": [tw.Bezier]}, "methods are Ind, Snapshot, FGE, SWA"),
        ({"methods": [tw.Ind(), tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01)]}, "must not be longer than the run"),
        ({"refresh": None}, "SWA's average has no batch-norm statistics"),
    ],
)
def test_bad_comparisons_are_found_before_training(settings, message, monkeypatch):
    monkeypatch.setattr(module_under_test, "fit", lambda *a, **k: pytest.fail("trained first"))
    with pytest.raises(tw.ThalwegError, match=message):
        run(**settings)
