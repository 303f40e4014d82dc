"""Every entry of the paper runs, with the paper's numbers beside ours; the smallest scale, and networks to match."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.paper.entries import ENTRIES, find_entry, open_shop, perform, price
from thalweg.paper.recipes import RECIPES, SCALES, find_recipe
from thalweg.paper.result import Claim, Result, published, row_of
from thalweg.paper.workshop import Need, prepare

NAMES = [name for name in ENTRIES if name not in ("width", "trivial", "imagenet", "ptb")]


def small(classes):
    """With batch norm, and as quick as can be."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes)
    )


def shop_of(folder, name):
    entry = ENTRIES[name]
    make = {"make": partial(small, 100 if entry.data == "cifar100" else 10)} if name in NAMES else {}
    return open_shop(folder, entry.data, entry.model, "smoke", progress=False, **make)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "imagenet"])
def test_every_entry_runs_and_is_kept(name, folder):
    shop = shop_of(folder, name)
    result = perform(shop, ENTRIES[name], 2)
    assert result.rows
    assert result.claims
    again = Result.load(shop.folder / name / "result.json")
    assert again.rows == json.loads(json.dumps(result.rows))
    assert str(again) == str(result)
    numbers = [value for row in result.rows for value in row.values() if isinstance(value, float)]
    assert all(np.isfinite(numbers))
    if name not in ("two-bends", "diversity", "ensembles", "cost"):
        assert list((shop.folder / name).glob("*.png"))


def test_what_entries_share_is_trained_once(folder):
    shop = shop_of(folder, "curves")
    perform(shop, ENTRIES["curves"], 2)
    times = {path: path.stat().st_mtime_ns for path in shop.folder.glob("*/*.safetensors")}
    assert "nothing to train; 4 trained before" in price(ENTRIES["profile"].wanted(shop, 2))
    perform(shop, ENTRIES["profile"], 2)
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_the_price_is_said_before(tmp_path):
    shop = shop_of(tmp_path, "ensembles")
    said = price(ENTRIES["ensembles"].wanted(shop, 3))
    assert said == "to train: 3 x network, 3 x snapshot, 3 x fge, 36 epochs, 144 steps"
    assert "2 x network, 1 x bezier" not in price(ENTRIES["cost"].wanted(shop, 3))
    full = open_shop(tmp_path, "cifar10", "conv3fc3", "smoke", progress=False)
    assert price(ENTRIES["width"].wanted(full, 1)).startswith("to train: 4 x network, 2 x bezier")


def test_fge_leaves_the_plain_run_where_the_paper_says(folder):
    recipe = find_recipe("cifar100", "vgg16")
    assert (recipe.walk.starts, recipe.walk.epochs, recipe.walk.cycle) == ((120, 156), 22, 2)
    plan = tw.FGE(cycle=2, lr_max=1e-2, lr_min=5e-4).plan(391, 22)
    assert plan.members * len(recipe.walk.starts) == 22
    spent = max(recipe.walk.starts) + recipe.walk.epochs * len(recipe.walk.starts)
    assert spent == recipe.epochs
    residual = find_recipe("cifar10", "preresnet164")
    assert max(residual.walk.starts) + residual.walk.epochs == 147
    assert tw.FGE(cycle=4, lr_max=5e-2, lr_min=5e-4).plan(391, 22).members == 6


def test_the_papers_numbers_are_all_there():
    assert len(published("curves")) == 28
    assert row_of("curves", dataset="CIFAR-100", model="VGG-16", curve="bezier")["length_ratio"] == 1.52
    assert row_of("ensembles", dataset="CIFAR-10", model="WRN-28-10", method="SSE")["error_3B"] == 3.55
    assert row_of("ptb", curve="segment")["test_max"] == 615.7
    for recipe in RECIPES.values():
        known = row_of("curves", dataset=recipe.dataset, model=recipe.title) or row_of(
            "ensembles", dataset=recipe.dataset, model=recipe.title
        )
        assert known or recipe.model in ("vgg16_bn", "conv3fc3", "resnet158")


def test_full_scale_needs_real_data(tmp_path):
    with pytest.raises(tw.ThalwegError, match="give --data"):
        perform(open_shop(tmp_path, "cifar100", "vgg16", "full", progress=False), ENTRIES["curves"], 1)
    with pytest.raises(tw.ThalwegError, match="cifar-100"):
        perform(open_shop(tmp_path, "cifar100", "vgg16", "full", given=tmp_path, progress=False), ENTRIES["curves"], 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_entry("table"), "entries are curves"),
        (lambda: find_recipe("mnist", "vgg16"), "got vgg16 on mnist"),
        (lambda: open_shop(Path(), "ptb", "vgg16", "smoke"), "on ptb the networks are lstm-large"),
        (lambda: open_shop(Path(), "mnist", "fc", "half"), "scales are full, smoke"),
    ],
)
def test_names_that_do_not_exist(call, message):
    with pytest.raises(tw.ThalwegError, match=message):
        call()


def test_imagenet_from_a_folder_of_images(tmp_path):
    g = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for k in range(6):
                pixels = g.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{k}.png")
    shop = open_shop(tmp_path / "out", "imagenet", "resnet50", "smoke", given=tmp_path, progress=False, make=partial(small, 2))
    shop.size, shop.workers = 32, 0
    shop.recipe = type(shop.recipe)(**{**vars(shop.recipe), "batch": 3})
    result = perform(shop, ENTRIES["imagenet"], 1)
    assert [row["error (paper)"] for row in result.rows] == [23.87, 23.31]
    assert "4 with the start" in result.rows[1]["networks"]


def test_imagenet_says_what_it_needs(tmp_path):
    shop = open_shop(tmp_path, "imagenet", "resnet50", "full", given=tmp_path, progress=False, make=partial(small, 2))
    with pytest.raises(tw.ThalwegError, match=r"not for download.*--data"):
        perform(shop, ENTRIES["imagenet"], 1)


def test_a_run_that_was_stopped_is_not_taken_for_finished(tmp_path):
    shop = shop_of(tmp_path, "curves")
    (shop.folder / "network-0").mkdir(parents=True)
    assert not shop.finished(Need("network", 0))
    prepare([(shop, Need("network", 0)), (shop, Need("network", 0))])
    assert shop.finished(Need("network", 0))


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("THALWEG_DATA", raising=False)
    runner = CliRunner()
    listed = runner.invoke(app, ["paper", "list"])
    assert all(name in listed.output for name in ENTRIES)
    made = runner.invoke(app, ["paper", "run", "trivial", "--scale", "smoke", "--device", "cpu", "--quiet"])
    assert made.exit_code == 0, made.output
    assert "to train: 2 x network" in made.output
    assert "logits multiplied by t^n" in made.output
    shown = runner.invoke(app, ["paper", "show"])
    assert "trivial: FC on MNIST" in shown.output
    none = runner.invoke(app, ["paper", "show", "--entry", "curves"])
    assert none.exit_code == 2
    assert runner.invoke(app, ["paper", "run", "trivial", "--shard", "3/2"]).exit_code == 2


def test_shards_divide_the_runs():
    from thalweg.commands.paper import _part

    runs = list(range(7))
    assert [run for i in (1, 2, 3) for run in _part(runs, f"{i}/3")] == runs
    with pytest.raises(tw.ThalwegError, match="part i of n"):
        _part(runs, "0/3")


def test_claims_read_as_sentences():
    assert str(Claim("it is so", False, "1 and 2")) == "DOES NOT HOLD: it is so (1 and 2)"
    assert set(SCALES) == {"full", "smoke"}
    assert torch.is_tensor(torch.zeros(1))
