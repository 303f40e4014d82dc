"""Scores, costs and equivalents of a comparison."""

import pytest
import torch
from matplotlib.figure import Figure

import thalweg as tw


@pytest.fixture(scope="module")
def scored():
    """Networks of four weights on noisy labels, and what plain torch says of their predictions."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=g, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(120, generator=g) > 0).long()
    train, test, held_out = ([(x[k : k + 40], y[k : k + 40])] for k in (0, 40, 80))
    train = [(x[k : k + 10], y[k : k + 10]) for k in range(0, 40, 10)]

    def make(seed):
        torch.manual_seed(seed)
        layers = torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        return torch.nn.Sequential(*layers).double()

    methods = [tw.Independent(), tw.Snapshot(cycles=2, lr_max=0.5)]
    common = {"budget": 20, "multiples": (1, 2), "seeds": (1, 2), "lr": 0.5}
    task = tw.classification()
    result = tw.compare(make, task, train, test, methods, **common, held_out=held_out)
    seeds = [1, 2]
    one = [tw.fit(make(s), task, train, epochs=20, lr=0.5, seed=s) for s in seeds]
    walked = [tw.walk(make(s), task, train, methods[1], epochs=20, seed=s + 500_009).members for s in seeds]

    def predicted(points, batches=test):
        total = 0
        for point in points:
            net = make(0)
            point.load_into(net)
            total = total + net(batches[0][0]).detach().softmax(1)
        return total / len(points)

    return result, one, walked, predicted, test[0][1], held_out


def test_comparison_paired_difference_with_its_standard_error(scored):
    result, one, walked, predicted, labels, _ = scored
    wrong = [(predicted([w]).argmax(1) != labels).double() for w in one]
    each = [(predicted(members).argmax(1) != labels).double() for members in walked]
    both = (predicted([*walked[0], *walked[1]]).argmax(1) != labels).double()
    for k, values in ((1, sum(each) / 2), (2, both)):
        apart = values - sum(wrong) / 2
        mean, spread = apart.mean().item(), apart.std().item() / len(apart) ** 0.5
        assert result.difference("Snapshot", k) == pytest.approx((mean, spread), rel=1e-9)
    assert result.difference("Independent", 1) == (0, 0)
    single = result.score("Independent", 1)[0]
    assert result.difference("Snapshot", 2)[0] == pytest.approx(result.score("Snapshot", 2)[0] - single)
    assert set(result.entries["Snapshot"]["differences"]["1"]) == {"error", "nll", "calibrated_nll"}


def test_calibrated_scores_of_a_comparison_use_the_held_out_data(scored):
    result, _, walked, predicted, labels, held_out = scored
    from scipy.optimize import minimize_scalar

    def after(temperature, batches, wanted):
        return float(torch.nn.functional.cross_entropy(predicted(walked[1], batches).log() / temperature, wanted))

    temperature = minimize_scalar(
        lambda temperature: after(temperature, held_out, held_out[0][1]), (0.5, 2.0), tol=1e-10
    ).x
    found = result.entries["Snapshot"]["runs"][1]["calibrated_nll"]
    test = float(torch.nn.functional.cross_entropy(predicted(walked[1]).log() / temperature, labels))
    assert found == pytest.approx(test, rel=1e-7)


def test_equivalents_of_a_comparison_are_interpolated(scored):
    result = scored[0]
    one, two = (result.score("Independent", k, "calibrated_nll")[0] for k in (1, 2))
    assert two < one
    assert [result.equivalent("Independent", k) for k in (1, 2)] == [1, 2]
    entries = {**result.entries, "Half": dict(result.entries["Snapshot"], pooled={"2": {"calibrated_nll": 0}})}
    entries["Half"]["runs"] = [{"error": 0, "calibrated_nll": (one + two) / 2}]
    changed = tw.Comparison(20, [1, 2], [1, 2], entries)
    assert changed.equivalent("Half", 1) == pytest.approx(1.5)
    assert changed.equivalent("Half", 2) == float("inf")
    alone = tw.Comparison(20, [1, 2], [1, 2], {"Snapshot": result.entries["Snapshot"]})
    assert alone.equivalent("Snapshot", 1) != alone.equivalent("Snapshot", 1)
    assert repr(changed) == "Comparison(Independent, Snapshot, Half, budget=20, multiples=[1, 2])"


def test_compare_scores_averages_as_one_network(scored):
    result, _, walked, predicted, labels, _ = scored
    for k, members in ((1, walked[0]), (2, [*walked[0], *walked[1]])):
        expected = (predicted([tw.average(members)]).argmax(1) != labels).double().mean().item()
        found = result.entries["Snapshot"]["averaged"]
        assert (found["runs"][0] if k == 1 else found["pooled"]["2"])["error"] == pytest.approx(expected)
    assert result.networks("Snapshot", 2, averaged=True) == 1
    assert result.score("Snapshot", 2, averaged=True)[0] == pytest.approx(expected)


def test_costs_of_a_comparison(scored):
    result = scored[0]
    assert result.entries["Snapshot"]["megabytes"] == {
        **{"1": 2 * 42 * 8 / 1e6, "2": 4 * 42 * 8 / 1e6},
        "averaged": 42 * 8 / 1e6,
    }
    assert result.milliseconds > 0
    lines = [line.split("  ") for line in result.costs().splitlines()]
    labels = [line[0] for line in lines[2:]]
    assert labels == [
        "1B Independent", "1B Snapshot", "1B Snapshot, averaged", "2B Independent", "2B Independent, averaged",
        "2B Snapshot", "2B Snapshot, averaged",
    ]  # fmt: skip
    snapshot = [cell.strip() for cell in lines[7] if cell.strip()]
    assert snapshot[1:4] == ["4", "0.00134", "40"]
    assert result.costs() in result.table()
    assert f"B is {result.budget} epochs: kB pools the first k runs, and 1B is the mean over runs\n" in result.table()
    assert result.costs() not in result.table("nll")


def test_comparison_of_an_older_file_has_costs():
    from run_folders import comparison

    old = comparison()
    assert "1B Ind" in old.table()
    assert old.difference("FGE", 1) == pytest.approx((float("nan"), float("nan")), nan_ok=True)
    tw.figures.equivalents(old, ax=Figure().subplots())


def test_equivalents_figure(scored):
    ax = tw.figures.equivalents(scored[0], ax=Figure().subplots())
    assert [line.get_label() for line in ax.lines][:2] == ["independent networks", "Snapshot ensembles"]
    assert list(ax.lines[1].get_xdata()) == [2, 4]
    assert list(ax.lines[1].get_ydata()) == [min(max(scored[0].equivalent("Snapshot", k), 1), 2) for k in (1, 2)]
    growth = [{"calibrated_nll": 1.0}, {"calibrated_nll": 0.8}]
    reports = {
        "FGE": tw.Report([{"calibrated_nll": 0.9}], growth[:1], [], []),
        "SSE": tw.Report(growth, growth, [], []),
    }
    ax = tw.figures.equivalents(reports, tw.Report(growth, growth, [], []), Figure().subplots())
    assert list(ax.lines[1].get_ydata()) == pytest.approx([1.5])
    with pytest.raises(tw.ThalwegError, match="give it as reference="):
        tw.figures.equivalents(reports)


def test_equivalents_figure_shows_independent_networks_as_the_table_does():
    nlls = {"runs": [{"error": 0.1, "calibrated_nll": 1.0}], "pooled": {"2": {"calibrated_nll": 0.8}}}
    nlls["pooled"]["3"] = {"calibrated_nll": 0.9}  # by chance worse than two
    entry = {"settings": "Independent()", "epochs": 4, "members": 1, **nlls}
    found = tw.Comparison(4, [1, 2, 3], [1, 2, 3], {"Independent": entry})
    alone = tw.figures.equivalents(found, ax=Figure().subplots()).lines[0]
    assert list(alone.get_xdata()) == [1, 2, 3]
    assert (
        list(alone.get_ydata()) == [found.equivalent("Independent", k) for k in (1, 2, 3)] == pytest.approx([1, 2, 1.5])
    )
    reference = tw.Report([{"calibrated_nll": nll} for nll in (1.0, 0.8, 0.9)], [], [], [])
    assert list(tw.figures.equivalents({}, reference, Figure().subplots()).lines[0].get_ydata()) == pytest.approx(
        [1, 2, 1.5]
    )
