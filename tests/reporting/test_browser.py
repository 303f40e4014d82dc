"""The page in a real browser: it draws without a word on the console, asks for nothing, and its parts move together."""

import base64
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Browser, Tab
from run_folders import RECORD, barriers, bezier, curve, plane, report, whole
from zoo import ZOO

import thalweg as tw
from thalweg.reporting import page
from thalweg.reporting.result import Claim, Result
from thalweg.results import Report
from thalweg.store import files

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open pages with")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">" + "long" * 40
NONE = "\N{EN DASH}"
SPOTS = "[...document.querySelectorAll('{} .spot')].map((spot) => [+spot.dataset.x, +spot.dataset.y])"

BROKEN_WORDS = """(() => {
  const broken = (node, word) => {
    const range = document.createRange()
    range.setStart(node, word.index)
    range.setEnd(node, word.index + word[0].length)
    return range.getClientRects().length > 1
  }
  const texts = [...document.querySelectorAll(".words")].flatMap((cell) => [...cell.childNodes].filter((n) => n.data))
  return texts.flatMap((node) => [...node.data.matchAll(/\\S{1,20}/g)].filter((word) => broken(node, word))).map(String)
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = whole(tmp_path_factory.mktemp("runs"))
    page.write(made / "page.html", [made])
    return made


@pytest.fixture
def tab(browser, folder):
    return Tab(browser, folder / "page.html")


def check(tab, path):
    """What holds for every page."""
    assert tab.troubles() == []
    assert tab.requests() == [path.resolve().as_uri()]
    assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    images = "[...document.querySelectorAll('[role=img]')].filter((image) => !image.closest('[hidden]'))"
    described = "(image) => document.getElementById(image.getAttribute('aria-labelledby')).textContent.length > 20"
    assert tab.run(f"{images}.every({described})")


def table(tab, host):
    """Heads and rows, as shown."""
    cells = "[...row.children].map((cell) => cell.textContent.trim())"
    return tab.run(f"[...document.querySelectorAll('{host} tr')].map((row) => {cells})")


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_draws_quietly_and_fits_the_window(browser, folder, width, scheme):
    tab = Tab(browser, folder / "page.html", width, scheme)
    check(tab, folder / "page.html")
    assert tab.run("document.querySelectorAll('svg[role=img], canvas[role=img]').length") == 6
    paper = tab.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (min(paper) > 200) if scheme == "light" else (max(paper) < 60)
    assert tab.run(BROKEN_WORDS) == []
    tab.screenshot(SCREENSHOTS / f"page-{width}-{scheme}.png")


def test_page_slider_moves_profile_plane_and_numbers(tab, folder):
    scans = [tw.Scan.load(folder / name / "scan.json") for name in ("line", "scan")]
    tab.run("document.getElementById('t').focus()")
    for keys, place in ((["Home"], 0), (["End"], 120), (["Home"] + ["ArrowRight"] * 31, 31)):
        for key in keys:
            tab.key(key)
        t = place / 120
        assert tab.run("document.querySelector('#slider output').textContent") == f"t = {t:.3f}"
        assert tab.run("document.getElementById('t').getAttribute('aria-valuetext')") == f"t = {t:.3f}"
        expected = [(t, np.interp(t, scan.t, scan.values["train"]["loss"])) for scan in scans]
        assert np.allclose(tab.run(SPOTS.format("#profile")), expected)
        assert np.allclose(tab.run(SPOTS.format("#plane")), [bezier(t)])
        rows = table(tab, "#numbers table")
        assert rows[2][0] == "Bezier"
        assert rows[2][rows[0].index("test error (%)")] == f"{100 * scans[1].values['test']['error'][place]:.2f}"
        assert rows[2][-1] == ", ".join(f"{value:.2f}" for value in bezier(t))
        assert rows[1][1].startswith("≈") == (place % 2 == 1)  # between two of the 61 points of the segment
        assert tab.run("document.getElementById('between').hidden") == (place % 2 == 0)


def test_page_plane_spots_lie_where_the_axes_say(tab):
    """In pixels: in the plane from corner to corner, in the profile over the ticks 0 and 1."""
    tab.run("document.getElementById('t').focus()")
    middle = "(circle) => [+circle.getAttribute('cx'), +circle.getAttribute('cy')]"
    corners = tab.run(f"[...document.querySelectorAll('#plane circle:not(.spot)')].map({middle})")
    labels = "[...document.querySelectorAll('#profile text')].filter((text) => +text.getAttribute('y') > 300)"
    ticks = dict(tab.run(f"{labels}.map((text) => [text.textContent, +text.getAttribute('x')])"))
    for key, corner, tick in (("Home", corners[0], "0"), ("End", corners[1], "1")):
        tab.key(key)
        assert np.allclose(tab.run(f"[...document.querySelectorAll('#plane .spot')].map({middle})"), [corner])
        [[x, _], _] = tab.run(f"[...document.querySelectorAll('#profile .spot')].map({middle})")
        assert x == pytest.approx(ticks[tick])
    assert corners[1][0] - corners[0][0] > 100


def test_page_data_and_quantity_are_chosen_for_all_views(tab, folder):
    scan = tw.Scan.load(folder / "scan" / "scan.json")
    tab.run("document.querySelector('input[value=test]').click(); document.querySelector('input[value=error]').click()")
    assert np.allclose(tab.run(SPOTS.format("#profile"))[1], [0.5, 100 * scan.values["test"]["error"][60]])
    bowl = plane().values["test"]["error"]
    summary = f"Test error from {100 * bowl.min():.2f} % to {100 * bowl.max():.2f} % on 41 x 41 points"
    for part in ("plane", "surface"):
        assert summary in tab.run(f"document.getElementById('{part}-text').textContent")
    highest = 100 * scan.values["test"]["error"].max()
    assert f"at most {highest:.2f} % (t = 0.50)" in tab.run("document.getElementById('profile-text').textContent")


def test_page_plane_map_has_the_colours_of_its_values(tab):
    """Darkest in the corner that is highest, brightest at the lowest point."""
    tab.run("document.querySelector('#plane canvas').id = 'map'")
    pixel = "[...document.getElementById('map').getContext('2d').getImageData({}, {}, 1, 1).data]"
    width, height = tab.run("[document.getElementById('map').width, document.getElementById('map').height]")
    lowest = tab.run(pixel.format(round(width * 7 / 14), round(height * (1 - 3.2 / 8.4))))
    highest = tab.run(pixel.format(1, 1))
    assert lowest[:2] > [200, 200]
    assert max(highest[:2]) < 90


def test_page_tables_sort_both_ways_and_by_keyboard(tab, folder):
    heads, *rows = table(tab, "#summary table")
    column = heads.index("max")
    press = "document.querySelectorAll('#summary thead button')[{}]"
    known = [row for row in rows if row[column] != NONE]
    tab.run(press.format(column) + ".focus()")
    for direction, sign in (("ascending", 1), ("descending", -1)):
        tab.key("Enter")
        assert tab.run(press.format(column) + ".closest('th').getAttribute('aria-sort')") == direction
        stored = {(r["label"], r["data"], r["quantity"]): r["max"] for r in tab.run("PAGE.summary")}
        after = table(tab, "#summary table")[1:]
        assert sorted(after) == sorted(rows)
        values = [stored[row[0], row[1], row[2].removesuffix(" (%)").replace(" ", "_")] for row in after]
        assert values == sorted(values, key=lambda value: sign * value)
        assert len(known) == len(rows)
    barrier = heads.index("barrier")
    tab.run(press.format(barrier) + ".click()")
    # a plane has none, which comes last
    assert [row[barrier] for row in table(tab, "#summary table")[-6:]] == [NONE] * 6
    tab.run(press.format(0) + ".click()")
    names = [row[0] for row in table(tab, "#summary table")[1:]]
    assert names == sorted(names, key=str.lower)


def test_page_every_figure_gives_its_data(tab, folder, tmp_path):
    tab.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    assert tab.run("[...document.querySelectorAll('.files')].every((files) => files.children.length)")
    buttons = "document.querySelectorAll('.files button')"  # one after another: ten at once is all the browser allows
    tab.run(f"{buttons}.forEach((button, i) => setTimeout(() => button.click(), 200 * i))")
    wanted = {"Bezier.csv": "scan", "Segment.csv": "line", "plane.csv": "plane"}
    for name, run in wanted.items():
        assert arrived(tmp_path / name) == tw.Scan.load(folder / run / "scan.json").to_csv()
    grown = arrived(tmp_path / "ensemble-growth.csv").splitlines()
    assert grown[0].startswith("members,ensemble_error,")
    assert [float(line.split(",")[1]) for line in grown[1:]] == [scores["error"] for scores in report().growth]
    assert arrived(tmp_path / "ensemble-disagreement.csv").splitlines()[2] == "2,0.01,0,0.01,0.02"
    assert arrived(tmp_path / "summary.csv").startswith(
        "scan,data,quantity,min,int,mean,max,barrier,length ratio\nSegment,train,"
    )
    assert "\nerror,FGE,10,1,0.08499999999999999,0.07," in arrived(tmp_path / "budget.csv")


def arrived(path):
    """What was downloaded; until it is all there, the browser keeps an empty file in its place."""
    end = time.monotonic() + 10
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    return path.read_text()


@pytest.mark.parametrize("width", [375, 1440])
def test_page_surface_has_axes_with_words_from_every_side(width, browser, folder):
    tab = Tab(browser, folder / "page.html", width)
    box = "((e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, -b.right, -b.bottom]; })"
    words = "[...document.querySelectorAll('#surface svg text')]"
    places = f"[{box}(document.querySelector('#surface canvas')), ...{words}.map({box})]"
    tab.run("document.querySelector('#surface canvas').focus()")
    for _ in range(16):
        shown = tab.run(f"{words}.map((text) => text.textContent)")
        assert [shown.count(word) for word in ("distance", "train loss")] == [2 if width > 480 else 0, 1]
        assert len([float(word.strip("≤≥ ")) for word in shown if word not in ("distance", "train loss")]) >= 5
        outer, *inner = np.array(tab.run(places))
        assert np.min(inner - outer) >= 0
        for _ in range(4):
            tab.key("ArrowRight")


def test_page_surface_rotates_by_keys_and_by_hand(tab):
    view = "document.querySelector('#surface canvas').dataset.view"
    first, picture = tab.run(view), image(tab)
    tab.run("document.querySelector('#surface canvas').focus()")
    tab.key("ArrowRight")
    tab.key("ArrowUp")
    assert tab.run(view) != first
    assert image(tab) != picture
    tab.key("Home")
    assert tab.run(view) == first
    assert image(tab) == picture
    tab.run("document.querySelector('#surface').scrollIntoView({behavior: 'instant'})")
    box = tab.run("document.querySelector('#surface canvas').getBoundingClientRect().toJSON()")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.drag((x, y), (x + 60, y))
    assert tab.run(view) != first
    assert tab.troubles() == []


def image(tab):
    address = tab.run("document.querySelector('#surface canvas').toDataURL()")
    return base64.b64decode(address.split(",")[1])


def test_page_reliability_is_drawn_before_and_after_scaling(tab):
    paths = tab.run("document.querySelectorAll('#reliability svg[role=img] > path').length")
    assert paths == 1 + (1 + 2) + (1 + 1)  # the diagonal, and two lines with their marks
    style = "(path) => [path.getAttribute('stroke'), path.getAttribute('transform')?.split(' scale')[1] ?? '']"
    drawn = tab.run(f"[...document.querySelectorAll('#reliability svg[role=img] > path')].map({style})")
    assert drawn[0] == ["var(--quiet)", ""]
    assert [size for _, size in drawn if size] == [
        "(1.52)",
        "(1.52)",
        "(2.07)",
    ]  # of a half, a half and all of the data
    text = "The larger a mark, the more of the data it stands for. "
    text += "Expected calibration error 0.020 before temperature scaling, 0.010 after temperature scaling. "
    text += "Temperature 1.250, fitted on held-out data. The average has no temperature."
    assert tab.run("document.getElementById('reliability-text').textContent") == text
    assert "6.00 % for the mean of all weights" in tab.run("document.getElementById('growth-text').textContent")


def test_page_ensemble_is_drawn_and_its_matrix_is_a_table(tab):
    assert (
        tab.run("document.querySelectorAll('#growth svg[role=img] > path').length") == 1 + 4 + 4
    )  # the line, and two marks each
    assert "5.00 % for its best member" in tab.run("document.getElementById('growth-text').textContent")
    heads, *rows = table(tab, "#disagreement table")
    assert heads == ["member", "1", "2", "3", "4"]
    assert rows[0] == ["1", NONE, "1.00", "2.00", "3.00"]
    shades = tab.run(
        "[...document.querySelectorAll('#disagreement tr:nth-child(1) td')].map((cell) => cell.style.background)"
    )
    assert len(set(shades)) == 4


def test_page_barriers_are_tables_of_the_chosen_quantity(tab):
    heads, *rows = table(tab, "#barriers figure:nth-child(1) table")
    assert heads == ["network", "a", "b", "c"]
    assert rows[1] == ["b", "2.000", "1.000", "4.000"]
    assert table(tab, "#barriers figure:nth-child(2) table")[2] == ["b", "0.200", "1.000", "0.400"]
    said = tab.run("[...document.querySelectorAll('#barriers figcaption')].map((text) => text.textContent)")
    assert said == ["The highest barrier is 4.000.", "The highest barrier is 0.400; 99.8 % of it."]
    tab.run("document.querySelectorAll('#barrier-quantities input')[1].click()")
    assert table(tab, "#barriers figure:nth-child(1) table")[1] == ["a", "0.00", "2.00", "3.00"]
    assert "test error (%)" in tab.run("document.getElementById('barriers-text').textContent")
    assert tab.troubles() == []


def test_page_barriers_between_networks_with_long_names_have_numbered_columns(browser, tmp_path):
    barriers([f"resnet-small-run-2026-11-18-seed-{k}-best" for k in (1, 2, 3)]).save(tmp_path / "barriers.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    heads, *rows = table(tab, "#barriers figure:nth-child(1) table")
    assert heads == ["network", "1", "2", "3"]
    assert [row[0].split() for row in rows] == [[f"resnet-small-run-2026-11-18-seed-{k}-best", k] for k in "123"]
    assert not tab.run("document.querySelector('#barriers .scroll').classList.contains('more')")


def test_page_unusual_barriers_are_shown(browser, tmp_path):
    found = barriers([HOSTILE, "two"], aligned=False)
    found.values["test"]["loss"][0, 1, 2] = found.values["test"]["loss"][1, 0, 2] = np.nan
    found.save(tmp_path / "barriers.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]), 375)
    assert table(tab, "#barriers table")[1][1:] == ["0.000", NONE]
    check(tab, tmp_path / "page.html")


def test_page_light_and_dark_mode_by_hand(tab):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.run("document.getElementById('theme').focus()")
    tab.key("Enter")
    assert tab.run(ground) != light
    assert tab.run("document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    tab.key("Enter")
    assert tab.run(ground) == light


def test_page_everything_is_reached_by_the_tab_key(tab):
    seen = set()
    for _ in range(80):
        tab.key("Tab")
        seen.add(
            tab.run(
                "(() => { const e = document.activeElement; return e.id || e.closest('[id]')?.id || e.tagName; })()"
            )
        )
    assert {"theme", "t", "summary", "profile", "plane", "surface", "growth", "budget"} <= seen


def test_page_is_drawn_again_when_the_window_is_resized(tab):
    before = tab.run("document.querySelector('#profile svg[role=img]').clientWidth")
    tab.resize(375)
    tab.until(f"document.querySelector('#profile svg[role=img]').clientWidth < {before}")
    assert tab.run("document.documentElement.scrollWidth") <= 375


def broken_plane():
    scan = plane(9, data=("train",), quantities=("loss",))
    scan.values["train"]["loss"][2:4, 3] = np.nan, np.inf
    return scan


def gappy_curve():
    scan = curve(points=21, data=("train",), quantities=("loss",))
    scan.values["train"]["loss"][[5, 6, 8]] = np.nan, np.inf, np.nan
    return scan


def diverged_plane():
    scan = plane(5, data=("train",), quantities=("loss",))
    scan.values["train"]["loss"][:] = np.nan
    return scan


def flat_plane():
    scan = plane(5)
    return tw.Scan(**{**vars(scan), "y": scan.y * 1e-3, "corners": [], "paths": {}, "marks": {}})


ODD = {
    "one-curve": (
        [curve()],
        ["No plane here: make one with thalweg plane", "No ensemble here", "No comparison here", "No run.json"],
    ),
    "one-plane": ([plane()], ["No curve has been measured here"]),
    "regression": ([curve(quantities=("loss",), data=("train",)), plane(11, ("train",), ("loss",))], []),
    "gaps": ([gappy_curve(), broken_plane()], ["3 points are not finite", "2 points are not finite"]),
    "diverged": ([curve(), diverged_plane()], ["its networks have diverged"]),
    "hostile": ([curve(HOSTILE, data=(HOSTILE,)), plane(11, data=(HOSTILE,), path=HOSTILE)], ["</script><img"]),
    "flat": ([flat_plane()], ["No curve is drawn in this plane", "The y axis is stretched 670 x."]),
    "constant": ([curve(height=0.0)], ["at most 0.050"]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("width", [375, 1440])
def test_page_unusual_run_folders_are_shown(name, width, browser, tmp_path):
    scans, captions = ODD[name]
    for number, scan in enumerate(scans):
        scan.save(tmp_path / f"{number}.json")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path, width)
    check(tab, path)
    assert tab.run("document.title") == tmp_path.name
    text = re.sub(r"\s+", " ", tab.run("document.body.innerText"))
    for line in captions:
        assert line in text
    tab.screenshot(SCREENSHOTS / f"{name}-{width}.png")


STRANGE = [
    HOSTILE,
    "\"' onmouseover='document.title=`broken`' x=\"",
    "javascript:document.title='broken'",
    "$data $title ${script} %s {0}",
    "<!--<script>document.title='broken'</script>\u2028\u2029",
]


@pytest.mark.parametrize("text", STRANGE, ids=["script", "quotes", "address", "template", "comment"])
def test_page_names_from_files_are_escaped(text, browser, tmp_path):
    """Of folders, data sets, metrics, curves, methods, claims, settings and arguments."""
    folder = tmp_path / text.replace("/", "_")[:100]
    scans = [curve(text, data=(text,), quantities=("loss", text)), plane(11, data=(text,), path=text)]
    for number, scan in enumerate(scans):
        scan.save(folder / str(number) / "scan.json")
    scores = [{"error": 0.1, text: 0.2}] * 2
    Report(scores, scores, [[0.0, 0.1], [0.1, 0.0]], [1.0]).save(folder / "ensemble" / "report.json")
    entry = {"settings": text, "epochs": 1, "members": 1, "runs": [{"error": 0.1}], "pooled": {}}
    tw.Comparison(1, [1], [0], {text: entry}).save(folder / "compare" / "comparison.json")
    Result(text, text, [{text: text}], [Claim(text, True, text)], {text: text}).save(folder / "paper" / "result.json")
    strange = {**RECORD, "command": text, "settings": {text: text, "data": text}, "argv": [text], "code": {text: text}}
    files.save_json(folder / "run" / "run.json", "run", strange)
    path = page.write(tmp_path / "page.html", [folder])
    tab = Tab(browser, path)
    assert tab.troubles() == []
    assert tab.requests() == [path.resolve().as_uri()]
    assert tab.run("document.title").split() == folder.name.split()
    assert (
        tab.run("document.querySelectorAll('img, iframe, [onerror], [onmouseover], a[href^=javascript]').length") == 0
    )
    assert tab.run("document.querySelectorAll('script').length") == 2
    shown = tab.run("document.body.textContent")
    assert shown.count(text[:20]) > 5


def test_page_missing_values_are_gaps(browser, tmp_path):
    gappy_curve().save(tmp_path / "scan.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    line = tab.run("document.querySelector('#profile svg[role=img] > path').getAttribute('d')")
    assert line.count("M") == 3
    assert line.count("L") == 21 - 3 - 3
    tab.run("document.getElementById('t').value = 5; document.getElementById('t').dispatchEvent(new Event('input'))")
    assert tab.run(SPOTS.format("#profile")) == []
    assert table(tab, "#numbers table")[1][1] == NONE


@pytest.mark.parametrize("above", [True, False])
def test_page_very_high_loss_hides_nothing(above, browser, tmp_path):
    scan = plane(21, data=("train",), quantities=("loss",))
    scan.values["train"]["loss"][:] = 1 + (scan.x - 5) ** 2 / 60
    scan.values["train"]["loss"][scan.y > 5 if above else scan.y < -0.5] = 1e9
    scan.paths["away"] = [(-50.0, 40.0), (50.0, 40.0)]
    scan.save(tmp_path / "scan.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    assert tab.troubles() == []
    turn = float(tab.run("document.querySelector('#surface canvas').dataset.view").split()[0])
    assert np.cos(turn) > 0.8 if above else np.cos(turn) < -0.8  # seen from the other side
    texts = tab.run("[...document.querySelectorAll('#plane svg text')].map((text) => text.textContent)")
    [highest] = [text.split()[1] for text in texts if text.startswith("≥")]
    assert 1 < float(highest) < 3


def test_page_legend_hides_and_shows_curves(browser, tmp_path):
    for name, height in (("scan", 500.0), ("other", 1.0)):  # in one folder, and one of them called as it
        curve(height=height).save(tmp_path / "other" / f"{name}.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    highest = (
        "Math.max(...[...document.querySelectorAll('#profile svg[role=img] text')].map((text) => +text.textContent || "
        "0))"
    )
    pressed = "[...document.querySelectorAll('#profile .legend button')].map((button) => button.ariaPressed)"
    assert tab.run(highest) > 10
    tab.run("document.querySelectorAll('#profile .legend button')[1].focus()")
    tab.key("Enter")
    assert tab.run(pressed) == ["true", "false"]
    assert tab.run(highest) < 3
    assert len(tab.run(SPOTS.format("#profile"))) == 1
    tab.key("Enter")  # the focus has stayed
    assert tab.run(pressed) == ["true", "true"]
    assert len(tab.run(SPOTS.format("#profile"))) == 2
    colours = "[...document.querySelectorAll('#profile .spot')].map((spot) => getComputedStyle(spot).fill)"
    assert len(set(tab.run(colours))) == 2  # each as its curve
    assert tab.troubles() == []


def test_page_many_curves_have_a_style_each_and_an_axis_for_all(browser, tmp_path):
    for k in range(8):
        data = ("train",) if k < 5 else ("test",)
        curve(height=1.0 + k, data=data).save(tmp_path / f"run-{k}" / "scan.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    style = "(line) => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray')"
    styles = tab.run(f"[...document.querySelectorAll('#profile svg[role=img] > path')].map({style})")
    assert len({*styles}) == len(styles) == 8
    labels = tab.run("[...document.querySelectorAll('#profile .label')].map((text) => text.textContent)")
    assert labels == ["t", "train loss, test loss"]
    assert tab.troubles() == []


@pytest.mark.parametrize("part", ["summary", "numbers", "barriers"])
def test_page_tables_fade_where_they_go_on(part, browser, tmp_path):
    curve().save(tmp_path / "scan.json")
    barriers([f"resnet-small-run-2026-11-18-seed-{k}-best" for k in range(8)]).save(tmp_path / "barriers.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]), 375)
    host = f"document.querySelector('#{part} .scroll')"
    tab.until(f"{host}.classList.contains('more')")
    tab.run(f"{host}.scrollLeft = 5000")
    tab.until(f"!{host}.classList.contains('more')")
    tab.run(f"{host}.scrollLeft = 0")
    tab.until(f"{host}.classList.contains('more')")
    tab.run(f"{host}.style.width = '5000px'")
    tab.until(f"!{host}.classList.contains('more')")
    assert tab.troubles() == []


def test_page_describes_soup_with_its_scores(browser, tmp_path):
    case = ZOO["mlp"]
    networks = {"<b>one": case.ends()[0], "two": case.ends()[1]}
    found = tw.soup(case.module(1), networks, case.task, case.batches(), how="uniform", run=tmp_path / "soup")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path)
    check(tab, path)
    said = tab.run("document.querySelector('.soup').textContent")
    assert said.startswith(f"soup is the average of {', '.join(found.members)}, out of 2 networks: its error (%) is ")
    assert (
        f"that of each network alone: {next(iter(found.alone))} {100 * next(iter(found.alone.values())):.2f}, " in said
    )
    assert "No scan here" not in tab.run("document.body.innerText")


def test_page_paper_entries_are_shown_with_their_claims(browser, tmp_path):
    rows = [{"method": "Ind", "1B (%)": 100.0}, {"method": "FGE", "1B (%)": 25.0, "1B (%) (paper)": 25.7}]
    rows += [{"method": "none"}, {"method": "Fast", "1B (%)": 9.5}]
    Result("ensembles", HOSTILE, rows, [Claim("it works", True, "1"), Claim("so do we", False, "2")]).save(
        tmp_path / "result.json"
    )
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path, 375)
    check(tab, path)
    assert "1 of 2 sentences hold" in tab.run("document.querySelector('#paper summary').textContent")
    tab.run("document.querySelector('#paper details').open = true")
    assert table(tab, "#paper table")[2] == ["FGE", "25.00 (25.7)"]
    tab.run("document.querySelectorAll('#paper th button')[1].click()")
    assert [row[0] for row in table(tab, "#paper table")[1:]] == ["Fast", "FGE", "Ind", "none"]
    assert "Does not hold: so do we (2)." in tab.run("document.querySelector('#paper .claims').innerText")
    assert "No comparison here" not in tab.run("document.body.innerText")
    check(tab, path)


def test_page_pairs_of_many_members_are_colours(browser, tmp_path):
    report(40).save(tmp_path / "report.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]), 375)
    assert tab.run("document.querySelector('.matrix').getBoundingClientRect().width") < 375
    cells = "document.querySelectorAll('.matrix tbody tr')[0].querySelectorAll('td')"
    assert tab.run(f"[...{cells}].slice(0, 3).map((cell) => cell.title)") == ["", "1 and 2: 1.00 %", "1 and 3: 2.00 %"]
    assert tab.run(f"new Set([...{cells}].map((cell) => cell.style.background)).size") > 30
    assert tab.troubles() == []


def test_page_folders_are_chosen(browser, tmp_path):
    for number, name in enumerate(("one", "two")):
        curve(height=1.0 + number).save(tmp_path / name / "scan" / "scan.json")
    plane().save(tmp_path / "two" / "plane" / "scan.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    assert "No plane here" in tab.run("document.getElementById('plane').innerText")
    tab.run(
        "(() => { const s = document.querySelector('#groups select'); s.value = 1; s.dispatchEvent(new "
        "Event('change')); })()"
    )
    assert "No plane here" not in tab.run("document.getElementById('plane').innerText")
    assert np.allclose(tab.run(SPOTS.format("#profile")), [[0.5, curve(height=2.0).values["train"]["loss"][60]]])
    assert np.allclose(tab.run(SPOTS.format("#plane")), [bezier(0.5)])
    assert tab.troubles() == []


def test_page_curve_is_placed_in_the_plane_by_what_it_is_not_by_its_name(browser, tmp_path):
    for name, own in (("another", ["other kind", "a", "d", "b"]), ("of-an-older-version", [])):
        replace(curve(), identity=own).save(tmp_path / name / "scan.json")
    replace(curve(), name="aligned Bezier").save(tmp_path / "own" / "scan.json")
    plane().save(tmp_path / "plane" / "scan.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    places = {row[0]: row[-1] for row in table(tab, "#numbers table")[1:]}
    own = ", ".join(f"{value:.2f}" for value in bezier(0.5))
    assert " Aligned Bezier: train loss" in tab.run("document.getElementById('profile-text').textContent")
    assert places == {"Bezier, another": NONE, "Bezier, of-an-older-version": NONE, "aligned Bezier": own}
    assert tab.troubles() == []


@pytest.mark.parametrize(("ends", "place"), [("ab", "5.00, 0.00"), ("cb", "7.00, 3.00"), ("ad", NONE)])
def test_page_segment_is_placed_in_a_plane_of_its_ends(ends, place, browser, tmp_path):
    replace(curve("Segment"), identity=["Segment", *ends]).save(tmp_path / "line.json")
    plane().save(tmp_path / "plane.json")
    tab = Tab(browser, page.write(tmp_path / "page.html", [tmp_path]))
    assert table(tab, "#numbers table")[1][-1] == place


def test_page_off_plane_curve_is_faded_with_its_distance(browser, tmp_path):
    away = {"Bezier": [0.0] * 121, "Far": [3.0] * 121, "Farther": [4.0] * 121, "members": [2.5, 0.0]}
    found = plane()
    far = [(x, y + 0.5) for x, y in found.paths["Bezier"]]
    paths = {"Bezier": found.paths["Bezier"], "Far": far, "Farther": far}
    replace(found, paths=paths, marks={"members": [(1.0, 1.0), (2.0, 2.0)]}, away=away).save(tmp_path / "plane.json")
    curve().save(tmp_path / "scan.json")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path)
    check(tab, path)
    words = tab.run("[...document.querySelectorAll('#plane .legend li')].map((item) => item.textContent)")
    assert words == [
        "Bezier",
        *(f"{name} off the plane" for name in ("Far, up to 3", "Farther, up to 4", "members, up to 2.5")),
    ]
    lines = "[...document.querySelectorAll('#plane path[stroke=\"#000\"]')]"
    assert tab.run(f"{lines}.map((line) => line.getAttribute('opacity'))")[:3] == [None, "0.5", "0.5"]
    assert len({*tab.run(f"{lines}.map((line) => line.getAttribute('stroke-dasharray'))")[:3]}) == 3
    assert "Faded: what does not lie in the plane" in tab.run("document.getElementById('plane-text').textContent")
    tab.screenshot(SCREENSHOTS / "off-plane.png")


def test_page_units_of_custom_metrics_are_shown(browser, tmp_path):
    found = curve(quantities=("loss", "data_loss", "error", "share"))
    replace(found, units={"error": "kN", "share": "%"}, length_ratio=None).save(tmp_path / "scan.json")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path)
    check(tab, path)
    heads = tab.run("[...document.querySelectorAll('#numbers th[scope=col]')].map((head) => head.textContent)")
    assert "train error (kN)" in heads
    assert "train share (%)" in heads
    row = tab.run("[...document.querySelectorAll('#numbers tbody td')].map((cell) => cell.textContent)")
    values = found.values["train"]
    assert row[heads.index("train error (kN)") - 1] == f"{values['error'][60]:.3f}"
    assert row[heads.index("train share (%)") - 1] == f"{100 * values['share'][60]:.2f}"
    assert "same ends" in tab.run("document.querySelector('#summary').textContent")


def test_page_fitted_plane_shows_its_networks_and_variance(browser, tmp_path):
    known = np.zeros_like(plane().values["train"]["loss"])
    known[0] = 1
    networks = [(0.5, 0.5), (1.0, 1.5), (2.0, 1.0), (2.5, 0.5)]
    fitted = {"corners": networks, "shares": [0.7, 0.2], "marks": {"training": networks}, "paths": {}}
    found = replace(plane(), measured=known, away={"training": [0.0, 1.0, 1.0, 0.5]}, **fitted)
    found.save(tmp_path / "scan.json")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path)
    check(tab, path)
    text = tab.run("document.getElementById('plane-text').textContent")
    assert "The plane holds 90 % of the variance of 4 networks." in text
    assert f"Interpolated between {known.shape[1]} of them." in text
    assert tab.run("document.querySelectorAll('#plane circle[fill=\"#fff\"]').length") == 0


def test_page_plane_around_a_network_has_one_spot(browser, tmp_path):
    replace(plane(), corners=[(0.0, 0.0)], paths={}, marks={}, away={}).save(tmp_path / "scan.json")
    path = page.write(tmp_path / "page.html", [tmp_path])
    tab = Tab(browser, path)
    check(tab, path)
    assert "White spot: the network around" in tab.run("document.getElementById('plane-text').textContent")
    assert tab.run("document.querySelectorAll('#plane circle[fill=\"#fff\"]').length") == 1
