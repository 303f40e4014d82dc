"""Figures are drawn from result files alone; what they show is checked on their parts."""

import inspect
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from run_folders import barriers
from zoo import ZOO

import thalweg as tw
from thalweg.reporting.axes import STYLES, smooth, styled
from thalweg.results.levels import LEVELS, Scale

mpl.use("Agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Scans that have been through a file."""
    case, folder = ZOO["mlp"], tmp_path_factory.mktemp("scans")
    a, b, c = (tw.Weights.of(case.module(seed)) for seed in range(3))
    curve = tw.Bezier(a, b).with_bends([c.vector])
    data = {"train": case.batches(), "test": case.batches()[:1]}
    made = {
        "Segment": tw.scan(case.module(1), tw.Segment(a, b), case.task, data, points=5),
        "Bezier": tw.scan(case.module(1), curve, case.task, data, points=9),
        "Plane": tw.scan(case.module(1), tw.Plane(a, b, c), case.task, data, grid=(6, 5), overlay={"Bezier": curve}),
    }
    for name, scan in made.items():
        scan.save(folder / f"{name}.json")
    return {name: tw.Scan.load(folder / f"{name}.json") for name in made}


def curves(scans):
    return {name: scans[name] for name in ("Segment", "Bezier")}


def test_profile_shows_every_curve_against_t(scans):
    ax = tw.figures.profile(curves(scans), "test", "error", Figure().subplots())
    assert [line.get_label() for line in ax.lines] == ["Segment", "Bezier"]
    for line, scan in zip(ax.lines, curves(scans).values(), strict=True):
        assert np.array_equal(line.get_xdata(), scan.t)
        assert np.allclose(line.get_ydata(), 100 * scan.values["test"]["error"])
    assert ax.get_xlabel() == "t"
    assert ax.get_ylabel() == "test error (%)"
    styles = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(styles) == len({style for _, style in styles}) == 2


def test_profile_of_one_scan_makes_its_own_axes(scans):
    ax = tw.figures.profile(scans["Bezier"])
    assert ax.get_ylabel() == "train loss"


def hill(height, sharpness=1.0):
    t = np.linspace(0, 1, 31)
    values = {"train": {"loss": 0.02 + height * (4 * t * (1 - t)) ** sharpness}}
    return tw.Scan("Bezier", "curve", values, t=t, length=t)


CROWDED = {
    "one hill": {"Segment": hill(1.0), "Bezier": hill(0.1)},
    "long names": {f"a curve between aligned networks, {k}": hill(k, 4.0) for k in range(1, 4)},
    "many": {f"curve number {k}": hill(0.2 * k, 1.0 + k) for k in range(1, 9)},
    "everywhere": {f"{k}": replace(hill(0.0), values={"train": {"loss": np.arange(31.0) % 2}}) for k in range(3)},
    "gaps": {"one": hill(np.nan), "two": hill(1.0, 3.0)},
}


@pytest.mark.parametrize("named", CROWDED)
@pytest.mark.parametrize("size", [(7, 4.4), (10, 4)])
def test_profile_legend_covers_no_line(named, size):
    figure, above = Figure(size, layout="constrained"), ["everywhere", "long names"] + ["many"] * (size[0] > 7)
    axes = np.atleast_1d(figure.subplots(1, 2 if size[0] > 7 else 1))
    for ax in axes:
        tw.figures.profile(CROWDED[named], ax=ax)
    figure.draw_without_rendering()
    for ax in axes:
        box = ax.get_legend().get_window_extent()
        courses = [line.get_path().transformed(ax.transData) for line in ax.lines]
        assert not any(course.intersects_bbox(box, filled=False) for course in courses)
        assert (box.y0 >= ax.bbox.y1) == (named in above)
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert ax.bbox.height > 0.5 * figure.bbox.height


def test_lines_without_points_and_in_figures_within_figures_have_a_legend():
    left, right = Figure().subfigures(1, 2)
    drawn = {left: {"none": ([], []), "one": ([1], [2])}, right: {"a": ([0, 1], [0, 1]), "b": ([], [])}}
    for figure, series in drawn.items():
        ax = tw.figures.lines(series, "x", "y", figure.subplots())
        assert [text.get_text() for text in ax.get_legend().get_texts()] == list(series)


def test_legends_of_methods_cover_no_line():
    scores = np.tile([0.3, 0.1], 6).tolist()  # all over the axes
    grown = {f"a method, {k}": report(scores, scores, [10.0 * n for n in range(1, 13)]) for k in range(3)}
    spent = {"1": {"error": 0.1}, "2": {"error": 0.3}, "3": {"error": 0.1}, "4": {"error": 0.3}}
    entry = {"settings": "", "epochs": 10, "members": 1, "runs": [{"error": 0.1}], "pooled": spent}
    compared = tw.Comparison(10, [1, 2, 3, 4], [0], {f"a method with a long name, {k}": entry for k in range(6)})
    series = {f"{k}": (range(12), np.roll(scores, k)) for k in range(2)}
    own = partial(tw.figures.lines, series, "x", "y")
    for draw in (partial(tw.figures.growth, grown, budget=20), partial(tw.figures.budget, compared), own):
        ax = draw(ax=Figure((7, 4.4), layout="constrained").subplots())
        ax.figure.draw_without_rendering()
        box = ax.get_legend().get_window_extent()
        assert box.y0 >= max([ax.bbox.y1, *(text.get_window_extent().y1 for text in ax.texts)])
        assert ax.bbox.height > 0.5 * ax.figure.bbox.height


DRAWING = [getattr(tw.figures, name) for name in tw.figures.__all__ if name != "save"]


@pytest.mark.parametrize("draw", DRAWING, ids=lambda draw: draw.__name__)
def test_figures_say_what_they_return(draw):
    said = inspect.getdoc(draw).partition("Returns:")[2]
    assert "figure" in said


def test_surface_shows_its_points_and_the_curve_in_it(scans):
    plane = scans["Plane"]
    ax = tw.figures.surface(plane, ax=Figure().subplots())
    path, corners = ax.lines
    assert np.allclose(np.column_stack(path.get_data()), plane.paths["Bezier"])
    assert np.allclose(np.column_stack(corners.get_data()), plane.corners)
    assert ax.get_aspect() == 1.0
    named = tw.figures.surface(replace(plane, marks={"one": plane.corners[:1]}, away={}), ax=Figure().subplots()).lines
    assert [line.get_label() for line in named][2:] == ["one"], "drawn above the dot that it names"
    assert named[1].get_markersize() > named[2].get_markersize()


def plane_of(values, corners=()):
    side = np.linspace(-1, 1, len(values))
    return tw.Scan(
        name="Plane", kind="plane", values={"train": {"loss": values}}, x=side, y=side, corners=list(corners)
    )


def scale_of(*planes):
    return Scale.of([(plane, plane.values["train"]["loss"]) for plane in planes])


def test_surface_levels_crowd_near_the_lowest_value():
    side = np.linspace(-1, 1, 41)
    bowl = 3 + side**2 + side[:, None] ** 2
    scale = scale_of(plane_of(bowl), plane_of(np.full((2, 2), np.inf)))
    assert (scale.low, scale.high) == pytest.approx((3, 5))  # drawn whole
    levels = [float(scale.text(share)) for share in np.linspace(0, 1, LEVELS)]
    assert levels[0] == pytest.approx(3 + 2 * np.exp(-5), abs=0.01)
    assert levels[-1] == pytest.approx(5, abs=0.01)
    assert scale.share(np.array([3 + 2 * np.exp(-2.5), 5.0])) == pytest.approx([0.5, 1])
    assert np.isnan(scale.share(np.array([np.nan]))).all()


@pytest.mark.parametrize("low", [0.0, 0.02, 0.36, 15.1, -2.0])
def test_surface_levels_of_a_narrow_range_are_different_numbers(low):
    scale = Scale(low, low + 0.03)
    texts = [scale.text(share) for share in np.linspace(0, 1, 14)[::2]]
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) <= 8
    assert Scale(0.02, 3.0).text(1.0) == "3"
    assert Scale(0.02, 3.0).text(0.5) == "0.265"


def test_surface_with_very_high_loss_shows_valley_and_barrier():
    across = np.linspace(-1, 1, 21)
    valley = np.tile(1 + across**2, (21, 1))
    walled = valley + np.where(np.arange(21) > 10, 1e9, 0)[:, None]
    scale = scale_of(plane_of(walled))
    assert scale.high < 5
    shares = scale.share(walled)
    assert np.ptp(shares[0]) > 0.5
    assert (shares[11:] > 1).all()
    assert np.isfinite(scale.share(np.array([np.inf])))
    walled[5, 10] = 70  # on the straight line between the networks
    assert scale_of(plane_of(walled, [(-0.5, -0.5), (0.5, -0.5), (0, 1)])).high == 70


def test_surfaces_share_one_scale(scans):
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = tw.figures.surfaces({"left": scans["Plane"], "right": scans["Plane"]}, axes=figure.subplots(1, 2))
    assert [ax.get_title() for ax in axes] == ["left", "right"]
    assert len(figure.axes) == 3


@pytest.mark.parametrize("draw", ["profile", "pairs", "surface", "own surface", "flat", "tall", "surfaces", "barriers"])
def test_figures_are_written_as_png_and_pdf_with_nothing_clipped(draw, scans, tmp_path):
    figure, plane = Figure(layout="constrained"), scans["Plane"]
    heights = {"own surface": 1.0, "flat": 0.54, "tall": 3.0}  # of its own figure's map, in its widths
    if draw == "profile":
        tw.figures.profile(curves(scans), ax=figure.subplots())
    elif draw == "pairs":
        tw.figures.pair_ensemble({"Segment": made(tmp_path), "PolyChain": made(tmp_path)}, figure.subplots())
    elif draw in heights:
        y = np.linspace(0, heights[draw] * np.ptp(plane.x), len(plane.y))
        figure = tw.figures.surface(replace(plane, y=y, corners=[(0.0, 0.0)], paths={})).figure
    elif draw == "surfaces":
        figure = Figure(figsize=(14, 4.4), layout="compressed")
        narrow, wide = (
            replace(scans["Plane"], x=np.linspace(0, to, 6), corners=scans["Plane"].corners[:1], paths={})
            for to in (1, 9)
        )
        tw.figures.surfaces({"plane": scans["Plane"], "narrow": narrow, "wide": wide}, axes=figure.subplots(1, 3))
    elif draw == "barriers":
        figure = tw.figures.barriers(barriers([f"a folder with a long name {k}" for k in range(5)]))[0].figure
    else:
        tw.figures.surface(scans["Plane"], ax=figure.subplots())
    canvas, whole = FigureCanvasAgg(figure), figure.bbox
    canvas.draw()  # once, as the PNG is: layouts come to rest when they are drawn again
    for ax in figure.axes:
        box = ax.get_tightbbox(canvas.get_renderer())
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= whole.x1 + 1
        assert box.y1 <= whole.y1 + 1
    png, pdf = tw.figures.save(figure, tmp_path / "figure")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_figures_refuse_what_cannot_be_drawn(scans):
    with pytest.raises(tw.ThalwegError, match="a surface needs a scan of a plane"):
        tw.figures.surface(scans["Bezier"], ax=Figure().subplots())
    with pytest.raises(tw.ThalwegError, match="a profile needs a scan of a curve"):
        tw.figures.profile(scans["Plane"], ax=Figure().subplots())
    with pytest.raises(tw.ThalwegError, match="the scan has no 'nll' on 'train'"):
        tw.figures.profile(scans["Bezier"], quantity="nll", ax=Figure().subplots())


def test_trace_marks_what_was_collected(tmp_path):
    case = ZOO["mlp"]
    method = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)
    walk = tw.walk(case.module(1), case.task, case.batches(), method, epochs=4, watch={"test": case.batches()})
    walk.traces[0].save(tmp_path / "trace.json")
    trace = tw.Trace.load(tmp_path / "trace.json")
    axes = tw.figures.trace(trace, axes=Figure().subplots(3, 1))
    assert [ax.get_ylabel() for ax in axes] == ["learning rate", "test error (%)", "distance from the start"]
    for ax in axes:
        assert ax.lines[1].get_xdata().tolist() == [i / 3 for i in trace.collected]
    assert np.allclose(axes[0].lines[1].get_ydata(), 0.01)
    assert np.allclose(axes[2].lines[1].get_ydata(), trace.distance[np.array(trace.collected) - 1])


def test_budget_shows_every_method(tmp_path):
    run = {"error": 0.1}
    entry = {
        "settings": "",
        "epochs": 10,
        "members": 1,
        "runs": [run, {"error": 0.2}],
        "pooled": {"2": {"error": 0.12}},
    }
    tw.Comparison(10, [1, 2], [0, 1], {"Ind": entry, "FGE": entry}).save(tmp_path / "c.json")
    ax = tw.figures.budget(tw.Comparison.load(tmp_path / "c.json"), ax=Figure().subplots())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Ind", "FGE"]
    assert ax.get_ylabel() == "error (%)"
    assert np.allclose(ax.containers[0].lines[0].get_ydata(), [15, 12])


def made(tmp_path, name="c.json"):
    """A curve ensemble that has been through a file; after rescaling it is better, and surer of what is right."""
    nll, scores = (
        {"none": [1.0, 2.0, 1.0], "per point": [0.9, 1.5, 0.9]},
        {"none": {"error": 0.2}, "per point": {"error": 0.1}},
    )
    bins = {"none": [[0.25, 0.5, 0.8], [0.75, 0.9, 0.95]], "per point": [[1.0, 0.8, 0.8]]}
    tw.CurveEnsemble([0, 0.5, 1], [1, 1, 1], [0.3, 0.4, 0.3], [0.3, 0.25, 0.2], {}, nll, scores, bins, "x").save(
        tmp_path / name
    )
    return tw.CurveEnsemble.load(tmp_path / name)


def test_pairs_with_the_start_figure_is_drawn_against_t(tmp_path):
    found = made(tmp_path)
    ax = tw.figures.pair_ensemble({"Segment": found, "Polychain": found}, Figure().subplots())
    assert [line.get_label() for line in ax.lines] == ["Segment", "Polychain", "both ends"]
    assert np.allclose(ax.lines[0].get_ydata(), [30, 25, 20])
    assert np.allclose(ax.lines[2].get_ydata(), 20)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("t", "test error of two networks (%)")


def test_curve_ensemble_is_drawn_before_and_after_rescaling(tmp_path):
    left, right = tw.figures.curve_ensemble(made(tmp_path), Figure().subplots(1, 2))
    assert [line.get_label() for line in left.lines] == [
        "phi(t)", "ensemble before rescaling", "ensemble after rescaling"]  # fmt: skip
    assert [float(line.get_ydata()[0]) for line in left.lines] == pytest.approx([30, 20, 10])
    assert {line.get_linestyle() for line in left.lines[1:]} == {"--", "-."}
    assert [list(line.get_ydata()) for line in right.lines] == [[1.0, 2.0, 1.0], [0.9, 1.5, 0.9]]


def test_reliability_figure_is_accuracy_against_confidence(tmp_path):
    ax = tw.figures.reliability(made(tmp_path), Figure().subplots())
    assert [line.get_label() for line in ax.lines] == ["accuracy = confidence", "before rescaling", "after rescaling"]
    assert np.allclose(np.column_stack(ax.lines[1].get_data()), [[80, 50], [95, 90]])
    sizes = ax.collections[0].get_sizes()
    assert sizes[1] > 2 * sizes[0]
    with pytest.raises(tw.ThalwegError, match="this report has none, as for regression"):
        tw.figures.reliability(tw.Report([{"squared_error": 1.0}], [{"squared_error": 1.0}], [], []))


def test_reliability_marks_are_whole_and_do_not_hide_each_other():
    bins = [[0.02, 0.0, 0.01], [0.9, 1.0, 0.995], [0.08, 0.98, 0.98]]
    ax = tw.figures.reliability({"before": bins, "after": bins}, Figure((6, 6), layout="constrained").subplots())
    ax.figure.draw_without_rendering()
    for marks in ax.collections:
        places, sizes = ax.transData.transform(marks.get_offsets()), np.sqrt(marks.get_sizes()) * ax.figure.dpi / 72
        low, high = places - sizes[:, None] / 2, places + sizes[:, None] / 2
        assert (low >= ax.bbox.min).all()
        assert (high <= ax.bbox.max).all()
        assert marks.get_alpha() < 1


def report(errors, grown, epochs):
    members, growth = ([{"error": value} for value in values] for values in (errors, grown))
    return tw.Report(growth, members, [], [], epochs=epochs)


def test_growth_figure_marks_single_networks_and_ensembles_at_every_budget():
    reports = {"SSE": report([0.3, 0.28], [0.3, 0.25], [10.0, 20.0]), "FGE": report([0.29], [0.29], [9.0])}
    ax = tw.figures.growth(reports, budget=10, ax=Figure().subplots())
    crosses, diamonds = ax.lines[0], ax.lines[1]
    assert (crosses.get_marker(), diamonds.get_marker()) == ("+", "d")
    assert np.allclose(np.column_stack(crosses.get_data()), [[10, 30], [20, 28]])
    assert np.allclose(diamonds.get_ydata(), [30, 25])
    assert [text.get_text() for text in ax.texts] == ["1B", "2B"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epochs spent", "error (%)")  # on whatever data
    counted = tw.figures.growth({"Ind": report([0.3, 0.28], [0.3, 0.25], None)}, budget=10, ax=Figure().subplots())
    assert counted.get_autoscalex_on()  # for whoever plots more into it
    assert counted.get_xlabel() == "networks"
    assert list(counted.lines[0].get_xdata()) == [1, 2]
    assert not counted.texts


def test_figures_name_missing_scores():
    """Instead of a figure without a line."""
    entry = {"settings": "", "epochs": 10, "members": 1, "runs": [{"error": 0.1}], "pooled": {}}
    comparison = tw.Comparison(10, [1], [0], {"FGE": entry})
    calls = (
        lambda: tw.figures.growth(report([0.3], [0.3], None), "accuracy", ax=Figure().subplots()),
        lambda: tw.figures.budget(comparison, "accuracy", ax=Figure().subplots()),
        lambda: comparison.table("accuracy"),
    )
    for call in calls:
        with pytest.raises(tw.ThalwegError, match="there is no score 'accuracy'; there are error"):
            call()


def test_surface_panels_do_not_overlap(tmp_path, monkeypatch):
    from thalweg.cli.curves import _write_scans

    x = np.linspace(-7, 7, 11)
    bowl = {"loss": 0.31 + np.add.outer(x**2, x**2) / 30, "error": 0.15 + np.add.outer(x**2, x**2) / 400}
    scan = tw.Scan("Plane", "plane", {f"data {k}": bowl for k in range(3)}, x=x, y=x, corners=[(0.0, 0.0)])
    drawn = []
    monkeypatch.setattr(tw.figures, "save", lambda figure, _: drawn.append(figure))
    _write_scans({tmp_path: scan})
    FigureCanvasAgg(drawn[0]).draw()
    boxes = [ax.get_tightbbox() for ax in drawn[0].axes]
    whole = drawn[0].bbox.expanded(1.001, 1.001)
    assert all(whole.contains(*corner) for box in boxes for corner in (box.min, box.max))
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_named_curves_have_one_style_in_all_figures():
    assert styled(["SSE", "FGE"]) == styled(["Ind", "SSE", "FGE"])[1:]
    assert styled(["mine", "Bezier", "yours"]) == [STYLES[0], STYLES[1], STYLES[2]]
    assert len({*styled(map(str, range(36)))}) == 36
    assert len({dash for _, dash in styled(map(str, range(6)))}) == 6
    assert len({*styled(["SSE", "Snapshot", "Ind"])}) == 3


def test_growth_figure_takes_one_report_without_a_name():
    case = ZOO["mlp"]
    report = tw.Ensemble(case.module(1), case.ends()).report(case.task, case.batches())
    assert [line.get_label() for line in tw.figures.growth(report, ax=Figure().subplots()).lines][
        1
    ] == "networks, ensemble"
    assert tw.figures.reliability(report, Figure().subplots()).lines[1].get_label() == "the ensemble"


def test_surface_off_plane_curve_is_faded_with_its_distance():
    x = y = np.linspace(0, 4, 3)
    path = [(0.0, 0.0), (2.0, 1.0), (4.0, 0.0)]
    values, corners = {"train": {"loss": np.arange(9.0).reshape(3, 3)}}, [(0.0, 0.0), (4.0, 0.0), (1.0, 2.0)]
    scan = tw.Scan(
        "Plane", "plane", values, x=x, y=y, corners=corners,
        paths={"inside": path, "outside": path}, marks={"members": [(1.0, 1.0)], "near": [(2.0, 1.0)]},
        away={"inside": [0.0, 0.001, 0.0], "outside": [0.0, 1.5, 0.0], "members": [0.5], "near": [0.0]},
    )  # fmt: skip
    ax = tw.figures.surface(scan)
    drawn = {line.get_label(): line for line in ax.lines}
    assert set(drawn) >= {"inside", "outside, up to 1.5 off the plane", "members, up to 0.5 off the plane", "near"}
    assert drawn["inside"].get_alpha() is None
    assert drawn["outside, up to 1.5 off the plane"].get_alpha() == 0.5
    assert drawn["outside, up to 1.5 off the plane"].get_linestyle() == "--"
    paths = dict.fromkeys(("one", "two", "three"), path)
    lines = tw.figures.surface(replace(scan, paths=paths, away={name: [0, 1, 0] for name in paths}, marks={})).lines
    assert len({line._dash_pattern[1] and tuple(line._dash_pattern[1]) for line in lines[:3]}) == 3
    assert drawn["members, up to 0.5 off the plane"].get_alpha() == 0.5
    assert drawn["near"].get_alpha() is None


def test_figures_take_the_units_of_the_scan():
    t = np.linspace(0, 1, 3)
    scan = tw.Scan("Segment", "curve", {"x": {"error": 300 + t, "share": t}}, t=t, length=t, units={"share": "%"})
    assert np.allclose(tw.figures.profile(scan, "x", "error").lines[0].get_ydata(), 300 + t)
    ax = tw.figures.profile(scan, "x", "share")
    assert np.allclose(ax.lines[0].get_ydata(), 100 * t)
    assert ax.get_ylabel() == "x share (%)"


def test_profile_of_several_seeds_draws_the_mean_and_a_band():
    def seed(t, *values):
        t = np.array(t)
        return tw.Scan("Bezier", "curve", {"test": {"error": np.array(values)}}, t=t, length=t)

    runs = [seed([0, 0.5, 1], 0.1, 0.3, 0.1), seed([0, 1], 0.2, 0.4), seed([0, 0.5, 1], 0.3, 0.0, 0.1)]
    ax = tw.figures.profile({"Bezier": runs, "Segment": runs[0]}, "test", "error", Figure().subplots())
    values = 100 * np.array([[0.1, 0.3, 0.1], [0.2, 0.3, 0.4], [0.3, 0.0, 0.1]])
    assert [line.get_label() for line in ax.lines] == ["Bezier, mean ± SD of 3 seeds", "Segment"]
    assert np.allclose(ax.lines[0].get_ydata(), values.mean(0))
    [band] = ax.collections
    low, high = values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)
    corners = {(x, round(y, 6)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(x, round(y, 6)) for x, y in zip([0, 0.5, 1] * 2, [*low, *high], strict=True)}
    alone = tw.figures.profile(runs, ax=Figure().subplots(), data="test", quantity="error")
    assert [text.get_text() for text in alone.get_legend().get_texts()] == ["Bezier, mean ± SD of 3 seeds"]
    for wrong in ([], {"Bezier": []}, [runs[0], "scan.json"]):
        with pytest.raises(tw.ThalwegError, match="a figure needs a Scan, or several by name"):
            tw.figures.profile(wrong)
    with pytest.raises(tw.ThalwegError, match="have no t in common"):
        tw.figures.profile([seed([0, 0.2], 0.1, 0.2), seed([0.5, 1], 0.1, 0.2)], "test", "error")
    elsewhere = tw.Scan("Bezier", "curve", {"train": runs[0].values["test"]}, t=runs[0].t, length=runs[0].length)
    with pytest.raises(tw.ThalwegError, match=r"no 'error' on 'test'; it has .'train'"):
        tw.figures.profile([runs[0], elsewhere], quantity="error")


def test_surface_interpolates_coarse_contours_and_says_so():
    side = np.linspace(-1, 1, 5)
    bowl = 1 + side**2 + side[:, None] ** 2
    ax = tw.figures.surface(plane_of(bowl, [(0.0, 0.0)]), ax=Figure().subplots())
    assert ax.get_xlabel().endswith("contours interpolated between 5 x 5 points")
    fine, _, shares = smooth(side, side, bowl)
    assert np.allclose(shares[:: len(fine) // 4, :: len(fine) // 4], bowl)  # through every measured value
    true, linear = fine**2, np.interp(fine, side, side**2)
    assert abs(shares - (1 + true + true[:, None])).max() < 0.6 * 2 * abs(linear - true).max()
    gap = bowl.copy()
    gap[0, 0] = np.nan
    for whole in (gap, np.ones((61, 61)) + np.arange(61)):
        ax = tw.figures.surface(plane_of(whole, [(0.0, 0.0)]), ax=Figure().subplots())
        assert "interpolated" not in ax.get_xlabel()


def test_surface_interpolated_contours_do_not_overshoot():
    step = np.where(np.arange(6) < 3, 0.0, 1.0) * np.ones((6, 1))
    *_, shares = smooth(np.arange(6.0), np.arange(6.0), step)
    assert shares.min() >= 0
    assert shares.max() <= 1


def test_surface_of_a_fitted_plane_shows_shares_and_distances(tmp_path):
    x = np.linspace(0, 4, 3)
    values = {"train": {"loss": np.arange(9.0).reshape(3, 3)}}
    marks = {"training": [(0.0, 0.0), (2.0, 1.0), (4.0, 0.0)], "FGE": [(4.0, 0.5)]}
    away = {"training": [0.0, 3.0, 1.5], "FGE": [1.0]}
    scan = tw.Scan(
        "Plane", "plane", values, x=x, y=x, corners=marks["training"], shares=[0.6, 0.25], marks=marks, away=away
    )
    ax = tw.figures.surface(scan, ax=Figure().subplots())
    assert ax.get_xlabel().startswith("distance (60% of the variance)\n")
    assert ax.get_ylabel() == "distance (25% of the variance)"
    assert "the darker a point, the farther off the plane" in ax.get_xlabel()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "training, up to 3 off the plane", "FGE, up to 1 off the plane"]  # fmt: skip
    drawn = {each.get_label(): each for each in ax.collections if "off the plane" in str(each.get_label())}
    assert drawn["training, up to 3 off the plane"].get_array().tolist() == pytest.approx([1, 0, 0.5])
    assert drawn["FGE, up to 1 off the plane"].get_array().tolist() == pytest.approx([2 / 3])


def test_figures_of_commands_show_any_name_of_folders_and_data_as_it_is(tmp_path):
    x, name = np.linspace(0, 4, 3), "costs_{$1$"
    loss = {name: {"loss": np.arange(9.0).reshape(3, 3)}}
    marks = {"_old": [(0.0, 0.0), (4.0, 0.0)], "a$b_{$": [(2.0, 1.0)]}
    scan = tw.Scan("Plane", "plane", loss, x=x, y=x, corners=marks["_old"], marks=marks)
    surface = tw.figures.panels(lambda ax: tw.figures.surface(scan, ax=ax))
    tw.figures.save(surface, tmp_path / "surface")
    assert [text.get_text().strip() for text in surface.axes[0].get_legend().get_texts()] == list(marks)
    lines = {each: tw.Scan("Segment", "curve", {name: {"loss": x}}, t=x / 4, length=x) for each in ("$b_{$", "c")}
    profile = tw.figures.panels(lambda ax: tw.figures.profile(lines, ax=ax))
    tw.figures.save(profile, tmp_path / "profile")
    assert profile.axes[0].yaxis.get_label()._preprocess_math(f"{name} loss") == (f"{name} loss", False)


def test_barriers_figure_shows_plain_and_aligned_on_one_scale(tmp_path):
    barriers().save(tmp_path / "barriers.json")
    found = tw.Barriers.load(tmp_path)
    axes = tw.figures.barriers(found, quantity="error")
    assert [ax.get_title() for ax in axes] == ["as they are", "aligned"]
    assert len({ax.images[0].get_clim() for ax in axes}) == 1
    assert axes[0].images[0].get_clim() == (0.0, 0.04)
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["a", "b", "c"]
    texts = [[text.get_text() for text in ax.texts] for ax in axes]
    assert texts[0] == ["0.00", "2.00", "3.00", "2.00", "1.00", "4.00", "3.00", "4.00", "2.00"]
    assert texts[1] == ["0.00", "0.20", "0.30", "0.20", "1.00", "0.40", "0.30", "0.40", "2.00"]
    assert axes[0].figure.axes[-1].get_ylabel() == "barrier of test error (%)"


@pytest.mark.parametrize("count", [3, 6, 10, 12])
def test_barriers_figure_cells_hold_their_numbers(count):
    axes = tw.figures.barriers(barriers([str(k) for k in range(count)]), quantity="error")
    canvas = FigureCanvasAgg(axes[0].figure)
    canvas.draw()
    for ax in axes:
        assert len(ax.texts) == count**2
        widest = max(text.get_window_extent(canvas.get_renderer()).width for text in ax.texts)
        assert widest < ax.bbox.width / count


LONG = [f"resnet-small-run-2026-11-18-seed-{k}-best" for k in range(12)]
NAMES = {
    "unequal": ["one", "two", "aligned by activations"],
    "long": LONG[:3],
    "many": LONG,
    "paths": [f"/home/someone/{'experiments/' * 8}seed-{k}" for k in range(4)],
    "upright": [f"network-{k}" for k in range(6)],
    "one": ["a single network with a long name"],
}


@pytest.mark.parametrize("names", NAMES)
def test_barriers_figure_has_room_for_names_and_numbers(names):
    found = barriers(NAMES[names])
    figure = Figure((10.2, 8.8), layout="compressed")
    for row in figure.subplots(2, 2):
        tw.figures.barriers(found, axes=row)
    own = tw.figures.barriers(found)
    for axes in (figure.axes[:2], own):
        FigureCanvasAgg(axes[0].figure).draw()
        for ax in axes:
            for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
                boxes = [label.get_window_extent() for label in labels]
                assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
            cell = ax.bbox.width / len(found.networks)
            assert max(text.get_window_extent().width for text in ax.texts) < cell
            assert ax.bbox.width / ax.figure.dpi > 2
    left, right = ([label.get_text() for label in ax.get_yticklabels()] for ax in own)
    if names in ("unequal", "long"):
        assert left == [f"{name}   {k}" for k, name in enumerate(NAMES[names], start=1)]
        assert right == ["1", "2", "3"]


def test_barriers_figure_cells_hold_very_high_losses():
    found = barriers(["a", "b", "c", "d", "e", "f"])
    found.values["test"]["loss"][:, :, 2] = 1.2345e13
    axes = tw.figures.barriers(found)
    FigureCanvasAgg(axes[0].figure).draw()
    assert max(text.get_window_extent().width for text in axes[0].texts) < axes[0].bbox.width / 6


def test_barriers_figure_of_many_networks_has_no_numbers():
    axes = tw.figures.barriers(barriers([str(k) for k in range(20)], aligned=False), axes=Figure().subplots())
    assert len(axes) == 1
    assert not axes[0].texts
    assert axes[0].images[0].get_array().shape == (20, 20)


def test_surface_of_a_flat_plane_is_stretched_and_says_so():
    flat = tw.Scan(
        "Plane", "plane", {"x": {"loss": np.arange(9.0).reshape(3, 3)}}, x=np.array([0, 5.0, 10]),
        y=np.array([0, 0.5, 1]), corners=[(0.0, 0.0)],
    )  # fmt: skip
    high, fitted = replace(flat, y=5 * flat.y), replace(flat, shares=[0.9, 0.1])
    points = "contours interpolated between 3 x 3 points"
    words = {"the y axis is stretched 4 x": flat, "the axes have different scales": fitted, points: high}
    for (last, scan), aspect in zip(words.items(), (4.0, 7.0, 1.0), strict=True):
        ax = tw.figures.surface(scan, ax=Figure().subplots())
        assert ax.get_aspect() == pytest.approx(aspect)
        assert ax.get_xlabel().splitlines()[-1] == last


@pytest.mark.parametrize("height", [0.06, 0.16, 0.25, 0.5])
@pytest.mark.parametrize("own", [True, False], ids=["own axes", "a panel"])
def test_surface_of_a_flat_plane_has_its_legend_outside_and_room_for_labels(height, own, scans):
    x = np.linspace(0, 10, 6)
    path = [(t, height * t * (10 - t) / 5) for t in x]
    scan = replace(scans["Plane"], x=x, y=height * np.linspace(0, 10, 5), corners=[(0.0, 0.0)], paths={"one": path})
    figure = None if own else Figure((5.5, 3), layout="compressed")
    ax = tw.figures.surface(replace(scan, marks={"two": path}), ax=figure and figure.subplots())
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    whole, legend, label = (part.get_window_extent() for part in (ax, ax.get_legend(), ax.yaxis.label))
    assert legend.y0 >= whole.y1
    assert legend.y1 <= ax.figure.bbox.y1
    assert label.height <= whole.height
    assert whole.width > 0.5 * ax.figure.bbox.width


def test_surfaces_titles_are_above_legends(scans):
    flat = replace(scans["Plane"], y=scans["Plane"].y / 10)
    for name, above in (("aligned", True), ("Bezier", False)):  # the second has no legend
        [ax] = tw.figures.surfaces({name: flat}, axes=[Figure(layout="compressed").subplots()])
        FigureCanvasAgg(ax.figure).draw()
        assert (ax.get_legend() is not None) == above
        assert ax.title.get_window_extent().y0 >= (ax.get_legend().get_window_extent().y1 if above else ax.bbox.y1)


@pytest.mark.parametrize("height", [0.06, 0.1, 0.2, 0.5, 1.0])
def test_surface_colour_bar_numbers_of_a_flat_plane_do_not_overlap(height):
    side = np.linspace(0, 10, 9)
    scan = tw.Scan("Plane", "plane", {"x": {"loss": np.add.outer(side, side)}}, x=side, y=height * side)
    figure = Figure((7, 3))
    ax = tw.figures.surface(scan, ax=figure.subplots())
    FigureCanvasAgg(figure).draw()
    boxes = [label.get_window_extent() for label in ax.child_axes[0].get_yticklabels()]
    assert len(boxes) > 1
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))


def test_surface_of_an_adaptive_plane_says_how_many_points_were_measured():
    known = np.ones((3, 3))
    known[1, 1] = 0
    scan = replace(plane_of(np.arange(9.0).reshape(3, 3), [(0.0, 0.0)]), measured=known)
    ax = tw.figures.surface(scan, ax=Figure().subplots())
    assert ax.get_xlabel().endswith("\ninterpolated between 8 of 3 x 3 points")


def test_profile_marks_points_that_are_not_equally_spaced():
    t = np.array([0, 0.1, 1])
    scan = tw.Scan("Bezier", "curve", {"x": {"loss": t}}, t=t, length=t, knots=[0.0, 1.0])
    for each, marker in ((scan, "."), (replace(scan, knots=[]), "None")):
        assert tw.figures.profile(each, ax=Figure().subplots()).lines[0].get_marker() == marker
