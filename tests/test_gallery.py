"""The gallery is what its script makes of the results that are kept with the documentation."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from thalweg.errors import ThalwegError
from thalweg.paper.drawing import drawings
from thalweg.paper.entries import ENTRIES
from thalweg.reporting.result import FILE, Claim, Result

SCRIPT = Path(__file__).parent.parent / "docs" / "gallery.py"
spec = spec_from_file_location("gallery", SCRIPT)
gallery = module_from_spec(spec)
spec.loader.exec_module(gallery)


def keep(docs, scale="full", entry="two-bends", seeds=3):
    about = {
        "scale": scale,
        "seeds": seeds,
        "seconds": 61.0,
        "seconds of training": 7200.0,
        "machine": "A GPU",
        "precision": "bf16",
    }
    about |= {"date": "2026-01-31", "versions": {"torch": "2.13.0"}, "recipe": {"data": "cifar10", "model": "vgg16"}}
    claims = [Claim("one is one", True, "1 and 1"), Claim("two is one", False, "2 and 1")]
    result = Result(entry, "VGG-16 on CIFAR-10", [{"distance": 31.0, "distance (paper)": 29.6}], claims, about)
    folder = docs / "paper" / scale / "cifar10-vgg16" / entry
    result.save(folder / FILE)
    (folder / "chains.png").touch()


def test_gallery_is_up_to_date():
    assert SCRIPT.with_suffix(".md").read_text() == gallery.page(SCRIPT.parent), "run `make gallery`"
    results = (SCRIPT.parent / "results.md").read_text()
    assert results == gallery.with_numbers(results, SCRIPT.parent), "run `make gallery`"
    assert gallery.numbers(SCRIPT.parent) in results


def test_gallery_has_a_reason_for_each_failed_claim_and_no_other():
    docs = SCRIPT.parent
    found = [(path, claim) for each in gallery.results(docs).values() for path, own in each for claim in own.claims]
    failed = {(path.relative_to(docs / "paper").as_posix(), claim.says) for path, claim in found if not claim.holds}
    reasons = {(folder, says): why for folder, own in gallery.reasons(docs).items() for says, why in own.items()}
    assert reasons.keys() == failed, "docs/paper/reasons.toml"
    assert all(map(str.strip, reasons.values()))


KEPT = sorted((SCRIPT.parent / "paper").rglob(FILE))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: "/".join(file.parts[-3:-1]))
def test_gallery_legends_cover_no_curve(file):
    for canvas in drawings(file.parent, Result.load(file)).values():
        canvas.draw_without_rendering()
        for ax in (ax for ax in canvas.axes if ax.get_legend()):
            box = ax.get_legend().get_window_extent()
            for line in (line for line in ax.lines if np.ptp(line.get_xdata())):  # not a mark at a budget
                covered = box.count_contains(ax.transData.transform(line.get_xydata()))
                assert not covered, f"{line.get_label()!r} is covered"


def test_gallery_shows_figures(tmp_path):
    keep(tmp_path)
    assert "(paper/full/cifar10-vgg16/two-bends/chains.png)" in gallery.page(tmp_path)


def test_gallery_results_say_what_was_found(tmp_path):
    keep(tmp_path)
    page = gallery.with_numbers(f"Before.\n{gallery.BEGIN}Old.\n{gallery.END}After.\n", tmp_path)
    assert page.startswith("Before.\n")
    assert page.endswith("After.\n")
    assert "Old." not in page
    assert "31 (29.6)" in page
    assert "- **Holds**: one is one (1 and 1)." in page
    assert "- **Does not hold**: two is one (2 and 1)." in page
    assert "A GPU, bf16, torch 2.13.0, 2026-01-31; 2.0 hours of training in all; this entry took 61 s." in page
    assert "$ thalweg paper run two-bends --data-set cifar10 --model vgg16 --seeds 3" in page


def test_gallery_gives_the_reason_after_the_claim(tmp_path):
    keep(tmp_path)
    text = '["full/cifar10-vgg16/two-bends"]\n"two is one" = """\nOne is\nless."""\n'
    (tmp_path / "paper" / "reasons.toml").write_text(text)
    page = gallery.numbers(tmp_path)
    assert "- **Does not hold**: two is one (2 and 1). *Likely reason*: One is less.\n" in page
    assert "(1 and 1).\n" in page


@pytest.mark.parametrize(("seeds", "listed"), [([2, 3, 5], "2,3,5"), ([3], "3,"), (3, "3")])
def test_gallery_entry_with_listed_seeds(seeds, listed, tmp_path):
    keep(tmp_path, entry="aligned", seeds=seeds)
    assert f"--seeds {listed} " in gallery.numbers(tmp_path)
    assert "(not in the paper)." in gallery.page(tmp_path)


def test_gallery_names_missing_results(tmp_path):
    keep(tmp_path)
    absent = gallery.page(tmp_path).splitlines()[-1]
    assert all((f"`{name}`" in absent) == (name != "two-bends") for name in ENTRIES)


def test_gallery_leaves_out_stalled_networks(tmp_path):
    keep(tmp_path, "smoke")
    with pytest.raises(ThalwegError, match="scale smoke"):
        gallery.page(tmp_path)
