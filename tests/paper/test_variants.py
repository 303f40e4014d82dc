"""Variants of the recipes: what is changed, where it is stored, how it is called, and what it is compared with."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app
from thalweg.paper import curve_comparisons, curve_entries, penn_treebank
from thalweg.paper.claims import row_of
from thalweg.paper.entries import ENTRIES, find_recipe, open_experiment
from thalweg.paper.experiment import Need, prepare
from thalweg.paper.recipes import RECIPES, SCALES, changed
from thalweg.paper.running import perform, price
from thalweg.store.runs import LOG, Run

VARIANTS = [  # entry, data set, network, changes, and what has to be trained at smoke scale
    ("width", "cifar10", "conv3fc3", ["weight_decay=1e-4"], "4 x network, 2 x bezier"),
    ("curves", "cifar10", "vgg16", ["weight_decay=6e-5"], "2 x network, 1 x bezier, 1 x polychain"),
    ("curves", "cifar10", "vgg16", ["precision=fp32"], "2 x network, 1 x bezier, 1 x polychain"),
    ("ensembles", "cifar10", "vgg16", ["walk.starts=160", "walk.epochs=40"], "1 x network, 1 x snapshot, 1 x fge"),
    ("curves", "mnist", "fc", ["lr=0.1", "width=0.1"], "2 x network, 1 x bezier, 1 x polychain"),
    ("trivial", "cifar10", "conv3fc3", [], "2 x network"),
    ("chain-losses", "mnist", "fc", [], "2 x network, 2 x polychain"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("variants")


@pytest.mark.parametrize(("name", "data", "model", "changes", "trained"), VARIANTS)
def test_paper_variant_is_one_command_with_a_folder_of_its_own(
    name, data, model, changes, trained, folder, monkeypatch
):
    monkeypatch.setattr("thalweg.paper.running.draw", lambda folder: [])
    monkeypatch.setitem(SCALES, "smoke", replace(SCALES["smoke"], images=32, tests=8, points=3))
    command = ["paper", "run", name, "--data-set", data, "--model", model, "--seeds", "1", "--scale", "smoke"]
    settings = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(app, [*command, *settings, "--device", "cpu", "-q", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert f"to train: {trained}" in done.output
    recipe = find_recipe(data, model, changes)
    assert f"{name}: {recipe.label}\n" in done.output
    assert (folder / "smoke" / recipe.folder / name / "result.json").is_file()


@pytest.mark.parametrize(
    ("entry", "options", "precision"),
    [
        ("trivial", ["--device", "cuda"], "bf16"),
        ("trivial", ["--device", "cuda", "--set", "precision=fp32"], "fp32"),
        ("trivial", ["--device", "cpu"], "fp32"),
        ("ptb", ["--device", "cuda"], "fp32"),
        ("ptb", ["--device", "cuda", "--set", "precision=bf16"], "bf16"),
    ],
)
def test_paper_precision_is_a_setting_of_the_recipe_on_a_gpu(entry, options, precision, monkeypatch):
    def opened(*_, compute, **__):
        raise tw.ThalwegError(f"opened in {compute.precision}")

    monkeypatch.setattr("thalweg.paper.entries.open_experiment", opened)
    done = CliRunner().invoke(app, ["paper", "run", entry, *options])
    assert f"opened in {precision}" in done.output


@pytest.mark.parametrize(
    ("entry", "options", "compile"),
    [
        ("fge-path", [], None),
        ("fge-path", ["--compile"], True),
        ("ptb", [], False),
        ("ptb", ["--compile"], True),
    ],
)
def test_paper_recipe_says_whether_its_network_is_compiled(entry, options, compile, monkeypatch):
    def opened(*_, compute, **__):
        raise tw.ThalwegError(f"opened: {compute.compile}")

    monkeypatch.setattr("thalweg.paper.entries.open_experiment", opened)
    assert f"opened: {compile}" in CliRunner().invoke(app, ["paper", "run", entry, *options]).output


@pytest.mark.parametrize(("options", "number"), [([], 3), (["--at-once", "5"], 5)])
def test_paper_interleaved_option(options, number, monkeypatch):
    def opened(*_, interleaved, **__):
        raise tw.ThalwegError(f"{interleaved} at a time")

    monkeypatch.setattr("thalweg.paper.entries.open_experiment", opened)
    assert f"{number} at a time" in CliRunner().invoke(app, ["paper", "run", "trivial", *options]).output


def test_paper_shorter_recipe_keeps_only_its_epochs(tmp_path, monkeypatch):
    """FGE alone needs all epochs at which it branches off, and says so before anything is trained."""
    experiment = open_experiment(tmp_path, "cifar10", "vgg16_bn", "full", ["epochs=130"], progress=False)
    monkeypatch.setattr(tw, "fit", lambda *_, keep, epochs, **__: (keep, epochs))
    monkeypatch.setattr(
        type(experiment), "images", [(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.arange(4))] * 2
    )
    experiment.folder_of(Need("network", 0)).mkdir(parents=True)
    assert experiment.network(0) == ([120], 130)
    message = "FGE branches off at epoch 156 .*, epochs 130.*, and networks have 130: set walk.starts too, as in --set"
    with pytest.raises(tw.ThalwegError, match=message):
        prepare([(experiment, Need("network", 1)), (experiment, Need("fge", 0))])
    assert not experiment.folder_of(Need("network", 1)).exists()


def test_paper_longest_training_runs_begin_first(tmp_path, monkeypatch):
    experiment = open_experiment(tmp_path, "cifar10", "preresnet20", "smoke", progress=False, interleaved=5)
    pair, asked = experiment.pairs(1)[0], []
    monkeypatch.setattr(type(pair), "obtain", lambda self, need: asked.append(need.epochs))

    def at_once(jobs, device, number):
        asked.append(number)
        return [job() for job in jobs]

    monkeypatch.setattr("thalweg.paper.experiment.at_once", at_once)
    prepare([(pair, Need("bezier", 0, "", epochs)) for epochs in (1, 20, 3)])
    assert asked == [5, 20, 3, 1]


def test_paper_recipes_share_no_networks(tmp_path):
    entry = ENTRIES["trivial"]
    perform(open_experiment(tmp_path, "mnist", "fc", "smoke", progress=False), entry, 1)
    other = open_experiment(tmp_path, "mnist", "fc", "smoke", ["weight_decay=0"], progress=False)
    assert price([(entry, other)], 1).startswith("to train: 2 x network")
    one = open_experiment(tmp_path, "mnist", "fc", "smoke", progress=False).network(0)
    assert not torch.equal(one.vector, other.network(0).vector)
    assert {path.name for path in (tmp_path / "smoke").iterdir()} == {"mnist-fc", "mnist-fc-weight_decay-0.0"}


def test_paper_variant_names_its_changes_once_in_one_order():
    recipe = RECIPES["cifar10", "vgg16"]
    assert changed(recipe, ["lr=0.05", "weight_decay=0.0005", "precision=bf16"]) == recipe
    one, two = changed(recipe, ["weight_decay=6e-5", "lr=1e-1"]), changed(recipe, ["lr=0.1", "weight_decay=0.00006"])
    assert one == two
    assert (one.lr, one.weight_decay, one.changes) == (0.1, 6e-5, ("lr=0.1", "weight_decay=6e-05"))
    assert one.label == "VGG-16 on CIFAR-10, lr 0.1, weight decay 6e-05"
    assert changed(one, ["lr=0.2"]).changes == ("lr=0.2", "weight_decay=6e-05")
    walk = changed(recipe, ["walk.starts=100,150", "walk.lr_max=0.02"])
    assert (walk.walk.starts, walk.walk.lr_max, walk.walk.lr_min) == ((100, 150), 0.02, 5e-4)
    assert walk.folder == "cifar10-vgg16-walk.lr_max-0.02-walk.starts-100,150"


def test_paper_recipe_rates_can_be_fractions():
    for data, model in (*RECIPES, *penn_treebank.RECIPES):
        variant = find_recipe(data, model, ["lr=0.0125", "curve_lr=0.25", "weight_decay=1e-3"])
        assert (variant.lr, variant.curve_lr, variant.weight_decay) == (0.0125, 0.25, 1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lr", r"lr takes a number above 0, as in --set lr=0\.05; got ''"),
        ("lr=nan", "lr takes a number above 0, .* got 'nan'"),
        ("lr=inf", "got 'inf'"),
        ("lr=0.1,0.2", "got '0.1,0.2'"),
        ("weight_decay=-1", "weight_decay takes a number of 0 or more"),
        ("epochs=1.5", "epochs takes a whole number above 0"),
        ("precision=fp16", "precision takes bf16 or fp32"),
        ("walk.starts=120,x", "walk.starts takes a whole number above 0, as in --set walk.starts=120"),
        ("walk.starts=", "got ''"),
        ("title=other", "--set changes one of batch, .*walk.starts, if VGG-16 on CIFAR-10 has it; got 'title'"),
        ("width=0.3", "if VGG-16 on CIFAR-10 has it; got 'width'"),
        ("walk.swing=2", "got 'walk.swing'"),
        ("", "got ''"),
    ],
)
def test_paper_variant_refuses_bad_settings(change, message):
    with pytest.raises(tw.ThalwegError, match=message):
        find_recipe("cifar10", "vgg16", [change])


def test_paper_variant_refuses_a_pretrained_network():
    with pytest.raises(tw.ThalwegError, match="networks trained from scratch; got resnet50 on imagenet"):
        find_recipe("imagenet", "resnet50", ["lr=0.1"])


def test_paper_variant_refuses_fge_settings_of_recipes_without_fge():
    with pytest.raises(tw.ThalwegError, match="if FC on MNIST has it; got 'walk"):
        find_recipe("mnist", "fc", ["walk.epochs=4"])


def test_paper_width_has_pairs_of_networks_at_every_width(tmp_path):
    experiment = open_experiment(tmp_path, "cifar10", "conv3fc3", "smoke", ["weight_decay=1e-4"], progress=False)
    wanted = ENTRIES["width"].wanted(experiment, 3)
    assert {(pair.recipe.width, pair.seeds) for pair, _ in wanted} == {
        (width, seeds) for width in (0.03, 0.1) for seeds in ((0, 1), (2, 3), (4, 5))
    }
    assert {pair.folder.name for pair, _ in wanted} == {
        f"cifar10-conv3fc3-weight_decay-0.0001-width-{width}" for width in (0.03, 0.1)
    }
    narrow = next(pair for pair, _ in wanted if pair.recipe.width == 0.03)
    assert narrow.architecture[-1].in_features == 30
    assert narrow.recipe.weight_decay == 1e-4
    assert experiment.with_width(1.0).folder == experiment.folder


def test_claim_on_loss_and_lengths_of_a_variant():
    ratio, loss = {"": "length ratio"}, {"": "train loss max"}
    for name in ("single", "bezier", "polychain"):
        paper = row_of("curves", dataset="MNIST", model="FC", curve=name)
        ratio |= {name: paper["length_ratio"], f"{name} (paper)": paper["length_ratio"]}
        loss |= {name: paper["train_loss_max"], f"{name} (paper)": paper["train_loss_max"]}
    assert [claim.holds for claim in curve_entries._as_published([ratio, loss])] == [True, True, True]
    ratio |= {"bezier": 1.07, "polychain": 1.73 * 1.051}
    loss |= {"single": 0.0187}
    claims = curve_entries._as_published([ratio, loss])
    assert [(claim.says, claim.holds) for claim in claims] == [
        ("the train loss of the ends is the paper's 0.018, within a twentieth", True),
        ("the length ratio of the bezier is the paper's 1.58, within a twentieth", False),
        ("the length ratio of the polychain is the paper's 1.73, within a twentieth", False),
    ]
    assert curve_entries._as_published([{"": "length ratio", "bezier": 1.0}, {"": "train loss max", "single": 1}]) == []


def test_paper_planes_are_fine_where_points_are_cheap():
    fine = {pair for pair, recipe in RECIPES.items() if recipe.grid == 61}
    assert {model for _, model in fine} == {"fc", "conv3fc3", "vgg16"}
    assert RECIPES["cifar100", "resnet_bottleneck164"].grid == 21


@pytest.mark.parametrize(
    ("over_t", "over_length", "holds"),
    [
        ((0.2, 0.01), (0.2, 0.02), [True, True]),
        ((0.2, 0.02), (0.2, 0.01), [False, True]),
        ((0.22, 0.01), (0.2, 0.02), [True, False]),
        ((0.1, 0.01), (0.2, 0.02), [True, True]),
    ],
)
def test_claim_on_loss_2(over_t, over_length, holds):
    compared = curve_comparisons.LOSS_OVER_LENGTH, curve_comparisons.UNSTEADY
    rows = [dict(zip(compared, row, strict=True)) for row in (over_t, over_length)]
    assert [claim.holds for claim in curve_comparisons.claims_of_losses(*rows)] == holds


def test_chain_trained_over_its_length_lies_apart_from_one_trained_over_t(tmp_path):
    experiment = open_experiment(tmp_path, "mnist", "fc", "smoke", ["width=0.1"], progress=False)
    prepare([(experiment, need) for need in ENTRIES["chain-losses"].needs])
    one, two = (experiment.obtain(need) for need in (curve_comparisons.OVER_T, curve_comparisons.OVER_LENGTH))
    assert one.bends[0].distance(two.bends[0]) > 0
    assert one.start.distance(two.start) == one.end.distance(two.end) == 0
    assert experiment.folder_of(Need("polychain", 0, loss="arclength")).name == "polychain-0-arclength"
    assert len(Run(experiment.folder / "polychain-0-arclength").lines(LOG)) == 2


def test_ptb_is_measured_with_dropout_at_every_point(tmp_path):
    experiment = open_experiment(tmp_path, "ptb", "lstm-medium", "smoke", progress=False)
    ends = [tw.Weights.of(experiment.model(seed)) for seed in (0, 1)]
    for end in ends:
        end.vector.mul_(20)  # so that what is dropped matters
    plain, noisy = (
        call("line", tw.Segment(*ends)).values["train"]["data_loss"]
        for call in (experiment.scan, experiment.scan_with_dropout)
    )
    network = experiment.model(0).train()
    ends[0].load_into(network)
    torch.manual_seed(3)
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(network(tokens, fresh).flatten(0, 1), targets.flatten())
            for _ in range(40)
            for tokens, fresh, targets in experiment.train
        ]
    naive = torch.stack(losses).mean()
    assert noisy[0] == pytest.approx(float(naive), rel=0.02)
    assert abs(plain[0] - float(naive)) > 0.05 * float(naive)
    assert len(noisy) == 5
    assert not isinstance(experiment.architecture.dropout, penn_treebank.ActiveDropout)
