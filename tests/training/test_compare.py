"""Equal budgets: what is charged, what is shared, what is pooled."""

import math
import re

import pytest
import torch
from matplotlib.figure import Figure
from zoo import ZOO

import thalweg as tw
from thalweg.evaluation.ensemble_comparison import EnsembleComparison, ExampleScores
from thalweg.training import compare as module_under_test
from thalweg.training.sgd import decay

METHODS = [
    tw.Independent(),
    tw.Snapshot(cycles=2, lr_max=0.1),
    tw.FGE(cycle=tw.Iterations(2), lr_max=0.05, lr_min=0.005, starts=(0.5, 0.7)),
    tw.SWA(lr=0.05, starts=(0.6,)),
]


def run(methods=METHODS, **settings):
    case = ZOO["conv_bn"]
    batches = case.batches()
    settings = {"budget": 10, "seeds": (1, 2, 3), "bn_batches": batches, "lr": 0.1, **settings}
    return tw.compare(case.module, case.task, batches, settings.pop("test", batches), methods, **settings)


@pytest.fixture(scope="module")
def result():
    return run()


def test_compare_spends_at_most_the_budget(result):
    epochs = {name: entry["epochs"] for name, entry in result.entries.items()}
    assert epochs == {"Independent": 10, "Snapshot": 10, "FGE": 7 + 2 * 1, "SWA": 10}
    members = {name: entry["members"] for name, entry in result.entries.items()}
    assert members == {"Independent": 1, "Snapshot": 2, "FGE": 2 * 2, "SWA": 1}


def test_compare_shared_epochs_give_what_each_method_finds_alone(result):
    """FGE in the comparison equals a fit and a walk by hand."""
    case = ZOO["conv_bn"]
    batches, fge = case.batches(), METHODS[2]
    pool = []
    for seed in (1, 2):
        trained = tw.fit(
            case.module(seed), case.task, batches, epochs=7, schedule=decay(0.1, 10, 3), seed=seed, keep=[5, 7]
        )
        starts = [trained.kept[5], trained.kept[7]]
        pool.append(
            tw.walk(case.module(seed), case.task, batches, fge, epochs=1, start=starts, seed=seed + 500_009).members
        )
        alone = tw.Ensemble(case.module(seed), pool[-1]).score(case.task, batches)
        assert result.entries["FGE"]["runs"][seed - 1] == pytest.approx(alone, rel=1e-12)
    both = tw.Ensemble(case.module(1), pool[0] + pool[1]).score(case.task, batches)
    assert result.entries["FGE"]["pooled"]["2"] == pytest.approx(both, rel=1e-12)


def test_compare_trains_shared_epochs_once(monkeypatch):
    fits = []
    original = module_under_test.fit
    monkeypatch.setattr(module_under_test, "fit", lambda *a, **k: fits.append(k["epochs"]) or original(*a, **k))
    run(seeds=(1,), multiples=(1,))
    assert fits == [10]
    run(methods=METHODS[2:], seeds=(1,), multiples=(1,))
    assert fits == [10, 7]
    run(methods=METHODS[1:2], seeds=(1,), multiples=(1,))
    assert fits == [10, 7]


def test_comparison_table_has_a_spread_at_one_budget_only(result):
    runs = [entry["error"] for entry in result.entries["Independent"]["runs"]]
    mean, spread = result.score("Independent", 1)
    assert mean == pytest.approx(sum(runs) / 3)
    assert spread == pytest.approx(torch.tensor(runs).double().std().item())
    assert result.score("Independent", 2)[1] != result.score("Independent", 2)[1]
    lines = result.table().splitlines()
    assert lines[0].split() == ["error", "(%)", "epochs", "per", "run", "networks", "per", "run", "1B", "2B", "3B"]
    assert "±" in lines[2]


def test_comparison_save_and_load(result, tmp_path):
    result.save(tmp_path / "c.json")
    back = tw.Comparison.load(tmp_path / "c.json")
    assert (back.to_dict(), back.milliseconds) == (result.to_dict(), result.milliseconds)


def test_compare_bare_classes_take_the_papers_settings():
    result = run(methods=[tw.Independent, tw.Snapshot, tw.SWA], seeds=(1,), multiples=(1,))
    assert result.entries["Snapshot"]["settings"] == "Snapshot(cycles=5, lr_max=0.1)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": []}, "got methods none"),
        ({"methods": [tw.Independent(), tw.Independent()]}, "different methods"),
        ({"seeds": (1, 1, 2)}, "different seeds"),
        ({"multiples": ()}, "multiples"),
        ({"seeds": (1, 2)}, "as many different seeds as the largest multiple"),
        ({"methods": [tw.Bezier]}, "methods are Independent, Snapshot, FGE, SWA"),
        ({"methods": [tw.Independent(), tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01)]}, "must not be longer than the run"),
        ({"methods": [tw.FGE(cycle=1, lr_max=0.1, lr_min=0.01, starts=(0.04, 0.8))]}, "before its first epoch"),
        ({"methods": [tw.FGE(cycle=2, lr_max=0.1, lr_min=0.01)]}, r"^FGE\(cycle=2, .* does not fit into a budget of"),
        ({"bn_batches": None}, "SWA's average has no batch-norm statistics"),
        (
            {"held_out": [(torch.ones(4, 2, 5, 5).double(), None)]},
            "on the held-out data, .*those of this batch are None: give data with labels",
        ),
        ({"held_out": iter([])}, "on the held-out data, the batches must"),
        ({"test": [(torch.ones(4, 2, 5, 5).double(), None)]}, "^predictions are .*: give data with labels"),
        ({"test": [(torch.ones(4, 2, 5, 5).double(), torch.arange(4))]}, "labels must lie between 0 and 2"),
    ],
)
def test_compare_refuses_bad_settings_before_training(settings, message, monkeypatch):
    monkeypatch.setattr(module_under_test, "fit", lambda *a, **k: pytest.fail("trained first"))
    with pytest.raises(tw.ThalwegError, match=message):
        run(**settings)


def test_compare_passes_every_setting_to_the_runs():
    """With dropout, shuffling, decay, momentum and clipping, each method equals the same calls by hand."""
    case = ZOO["dropout"]
    data = [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)]
    batches = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    common = {"momentum": 0.5, "weight_decay": 0.05, "clip": 0.3}
    methods = [tw.Independent(), tw.SWA(lr=0.05, starts=(0.5,)), tw.Snapshot(cycles=2, lr_max=0.2)]
    arguments = (case.module, case.task, batches, case.batches(), methods)
    result = tw.compare(*arguments, budget=4, seeds=(3,), multiples=(1,), lr=0.2, **common)
    trained = tw.fit(case.module(3), case.task, batches, epochs=4, lr=0.2, seed=3, keep=[2], **common)
    later = {"seed": 3 + 500_009, **common}
    swa = tw.walk(case.module(3), case.task, batches, methods[1], epochs=2, start=trained.kept[2], **later)
    snapshots = tw.walk(case.module(3), case.task, batches, methods[2], epochs=4, **later)
    for name, members in (
        ("Independent", [trained]),
        ("SWA", [tw.average(swa.members)]),
        ("Snapshot", snapshots.members),
    ):
        alone = tw.Ensemble(case.module(3), members).score(case.task, case.batches())
        assert result.entries[name]["runs"][0] == pytest.approx(alone, rel=1e-12)


def test_compare_swa_average_has_statistics_of_its_own(result):
    case = ZOO["conv_bn"]
    batches = case.batches()
    trained = tw.fit(case.module(2), case.task, batches, epochs=6, schedule=decay(0.1, 10, 3), seed=2, keep=[6])
    members = tw.walk(case.module(2), case.task, batches, METHODS[3], epochs=4, start=trained.kept[6]).members
    alone = tw.Ensemble(case.module(2), [tw.update_bn(case.module(2), tw.average(members), batches)])
    assert result.entries["SWA"]["runs"][1] == pytest.approx(alone.score(case.task, batches), rel=1e-12)


def test_compare_default_methods_are_the_papers_for_its_rate():
    from thalweg.training.compare import _with_paper_settings

    assert _with_paper_settings(tw.FGE, 0.05) == tw.FGE(cycle=2, lr_max=0.01, lr_min=0.0005)
    assert _with_paper_settings(tw.Snapshot, 0.05) == tw.Snapshot(cycles=5, lr_max=0.05)


def test_compare_budget_that_does_not_fit_names_the_method_and_one_that_works():
    methods = [tw.Independent(), tw.Snapshot(cycles=5, lr_max=0.1), tw.FGE(cycle=4, lr_max=0.1, lr_min=0.01)]
    with pytest.raises(
        tw.ThalwegError, match=r"^FGE\(cycle=4.* a budget of (\d+) epochs works for all of these"
    ) as refused:
        run(methods=methods, budget=10, seeds=(1,), multiples=(1,))
    works = int(re.search(r"a budget of (\d+) epochs works", str(refused.value))[1])
    with pytest.raises(tw.ThalwegError, match="does not fit"):
        run(methods=methods, budget=works - 1, seeds=(1,), multiples=(1,))
    found = run(methods=methods, budget=works, seeds=(1,), multiples=(1,))
    assert found.entries["FGE"]["members"] == 2


def test_comparison_tables_and_files_name_methods_in_full(result, tmp_path):
    result.save(tmp_path / "comparison.json")
    table = tw.Comparison.load(tmp_path / "comparison.json").table()
    assert "Independent: Independent networks, Independent()\n" in table
    assert f"FGE: Fast Geometric Ensembling, {METHODS[2]}" in table
    assert result.entries["SWA"]["title"] == "Stochastic weight averaging"
    ax = tw.figures.budget(result, ax=Figure().subplots())
    assert "Fast Geometric Ensembling" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("make", [torch.nn.Linear(2, 2), lambda seed: None])
def test_compare_refuses_what_makes_no_networks(make):
    batches = [(torch.ones(2, 2), torch.ones(2, dtype=torch.long))]
    with pytest.raises(
        tw.ThalwegError, match=r"compare needs a function that makes a torch.nn.Module from a seed; got"
    ):
        tw.compare(
            make, tw.classification(), batches, batches, [tw.Independent], budget=2, multiples=[1], seeds=[0], lr=0.1
        )


def test_comparison_of_one_test_example_has_no_standard_error():
    def make(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2)

    train = [(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))]
    one = [(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))]
    how = {"budget": 1, "multiples": (1,), "seeds": (0,), "lr": 0.1}
    found = tw.compare(make, tw.classification(), train, one, [tw.Independent()], **how)
    assert found.difference("Independent", 1)[0] == 0
    assert math.isnan(found.difference("Independent", 1)[1])
    assert "1B Independent" in found.costs()


def test_compare_more_seeds_than_budgets_reach_larger_equivalents():
    result = run([tw.Independent(), tw.Snapshot(cycles=2, lr_max=0.1)], budget=4, multiples=(1,))
    three = result.entries["Independent"]["pooled"]["3"]
    case, batches = ZOO["conv_bn"], ZOO["conv_bn"].batches()
    networks = [tw.fit(case.module(seed), case.task, batches, epochs=4, lr=0.1, seed=seed) for seed in (1, 2, 3)]
    alone = tw.Ensemble(case.module(1), networks).score(case.task, batches)
    assert three == pytest.approx(alone, rel=1e-12)
    assert [*result.independent()] == [1, 2, 3]
    assert [*result.entries["Snapshot"]["pooled"]] == [], "scored at the budgets alone"
    nll = {"runs": [{"calibrated_nll": 1.0}], "pooled": {k: {"calibrated_nll": v} for k, v in (("2", 0.8), ("3", 0.7))}}
    entries = {"Independent": {**result.entries["Independent"], **nll}, "New": {**result.entries["Snapshot"], **nll}}
    entries["New"] |= {"runs": [{"error": 0, "calibrated_nll": 0.75}]}
    found = tw.Comparison(4, [1], [1, 2, 3], entries)
    assert found.equivalent("New", 1) == pytest.approx(2.5)
    assert max(tw.figures.equivalents(found, ax=Figure().subplots()).lines[0].get_ydata()) == 3


def test_compare_keeps_time_beside_the_result(tmp_path):
    found = [run(methods=METHODS[:1], seeds=(1,), multiples=(1,), run=tmp_path / name) for name in "ab"]
    one, two = ((tmp_path / name / "comparison.json").read_bytes() for name in "ab")
    assert one == two
    again = run(methods=METHODS[:1], seeds=(1,), multiples=(1,), run=tmp_path / "a")
    assert again.milliseconds == found[0].milliseconds > 0
    (tmp_path / "a" / "timing.json").unlink()
    assert run(methods=METHODS[:1], seeds=(1,), multiples=(1,), run=tmp_path / "a").milliseconds is None


def test_compare_leaves_out_an_average_that_cannot_be_made():
    result = run(methods=METHODS[:3], seeds=(1,), multiples=(1,), bn_batches=None)
    assert "averaged" not in result.entries["FGE"]
    assert "set bn_batches= to" in result.entries["FGE"]["not averaged"]
    assert "B FGE, averaged" not in result.costs()
    assert "FGE, not averaged: an average has no batch-norm statistics of its own: set bn_batches= to" in result.table()


def test_comparison_costs_name_a_missing_temperature():
    held_out = [(torch.ones(1, 2, 5, 5).double(), torch.tensor([0]))]
    result = run(methods=METHODS[:1], seeds=(1,), multiples=(1,), held_out=held_out)
    both = "Independent; Independent, averaged"
    assert f"\n{both}, not calibrated: no temperature has the lowest NLL on the held-out data: " in result.costs()
    assert "calibrated_nll" not in result.entries["Independent"]["runs"][0]


@pytest.mark.parametrize(
    ("without", "said"), [({1}, "at 1B, why"), ({1, 3}, "at 1B and 3B, why"), ({1, 2, 3}, "why"), (set(), None)]
)
def test_comparison_names_the_budgets_without_a_temperature(without, said):
    def score(members):
        return ExampleScores({"error": 0.1}, {}, "why" if len(members) in without else "")

    own = EnsembleComparison(*[None] * 6)._pools([["a"], ["b"], ["c"]], (1, 2, 3), [], score)
    assert own.get("not calibrated") == said


def test_compare_says_when_held_out_data_are_the_test_data():
    batches = ZOO["conv_bn"].batches()
    one = {"methods": METHODS[:1], "seeds": (1,), "multiples": (1,), "test": batches}
    said = "Independent, not held out: temperatures were fitted on the test data"
    assert said in run(**one, held_out=batches).table()
    assert said not in run(**one, held_out=ZOO["conv_bn"].batches()).table()


def test_compare_takes_regression_with_one_number_per_example():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=g)
    methods, settings = [tw.Independent()], {"budget": 2, "multiples": (1,), "seeds": (0,), "lr": 0.1}

    def entry(last, targets):
        batches = [(x, targets)]
        made = tw.compare(
            lambda seed: torch.nn.Sequential(torch.nn.Linear(3, 1), last),
            tw.regression(),
            batches,
            batches,
            methods,
            **settings,
        )
        return made.entries["Independent"]["runs"]

    flat, column = entry(torch.nn.Flatten(0), x.sum(1)), entry(torch.nn.Identity(), x.sum(1, keepdim=True))
    assert flat == [pytest.approx(column[0], rel=1e-6)]
