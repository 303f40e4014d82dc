"""Ensembles: probabilities are averaged, whatever the order, and files are what they say."""

import shutil
from itertools import pairwise

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.evaluation import metrics
from thalweg.evaluation.measure import predicted

LABELLED = [name for name in ZOO if name != "two_inputs"]


def members_of(animal, count=4):
    return [tw.fit(animal.module(seed), animal.task, animal.batches(), epochs=2, lr=0.1) for seed in range(count)]


def naive(animal, members, average_logits=False):
    """Load, predict, average; float64 throughout."""
    total = 0
    for weights in members:
        net = animal.module(9)
        weights.load_into(net)
        getattr(net, "_orig_mod", net).eval()
        with torch.no_grad():
            logits = torch.cat([animal.task.predict(net, batch)[0] for batch in animal.batches()])
        total = total + (logits if average_logits else logits.softmax(1))
    return (total / len(members)).softmax(1) if average_logits else total / len(members)


@pytest.mark.parametrize("name", LABELLED)
def test_probabilities_are_the_naive_loops(name):
    animal = ZOO[name]
    members, module = members_of(animal), animal.module(7)
    before = bits(module)
    ours, targets = tw.Ensemble(module, members).predict(animal.task, animal.batches())
    assert same_bits(before, bits(module))
    assert torch.allclose(ours, naive(animal, members), rtol=1e-12)
    assert not torch.allclose(ours, naive(animal, members, average_logits=True), rtol=1e-6)
    expected = torch.cat(
        [animal.task.predict(lambda *a, **k: animal.module(1)(*a, **k), b)[1] for b in animal.batches()]
    )
    assert torch.equal(targets, expected)


def test_an_ensemble_of_one_is_the_network():
    animal = ZOO["conv_bn"]
    [member] = members_of(animal, 1)
    ours, _ = tw.Ensemble(animal.module(7), [member]).predict(animal.task, animal.batches())
    assert torch.equal(ours, naive(animal, [member]))
    scan = tw.scan(animal.module(7), [member], animal.task, {"x": animal.batches()})
    score = tw.Ensemble(animal.module(7), [member]).score(animal.task, animal.batches())
    assert score["error"] == scan.values["x"]["error"][0]
    assert score["nll"] == pytest.approx(scan.values["x"]["data_loss"][0], rel=1e-12)
    assert score["disagreement"] == 0


def test_the_order_of_members_does_not_matter():
    animal = ZOO["conv_bn"]
    members = members_of(animal)
    scores = [
        tw.Ensemble(animal.module(7), order).score(animal.task, animal.batches()) for order in (members, members[::-1])
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_the_report_is_what_the_parts_say():
    animal = ZOO["conv_bn"]
    members = members_of(animal)
    report = tw.Ensemble(animal.module(7), members).report(animal.task, animal.batches())
    labels = torch.cat([y for _, y in animal.batches()])
    alone = [naive(animal, [member]) for member in members]
    for k in range(1, 5):
        assert report.growth[k - 1]["error"] == metrics.error(naive(animal, members[:k]), labels)
        assert report.growth[k - 1]["brier"] == pytest.approx(metrics.brier(naive(animal, members[:k]), labels))
        assert report.members[k - 1]["nll"] == pytest.approx(metrics.nll(alone[k - 1], labels))
    chosen = [p.argmax(1) for p in alone]
    pairs = [(chosen[i] != chosen[j]).double().mean().item() for i in range(4) for j in range(i)]
    assert report.scores["disagreement"] == pytest.approx(sum(pairs) / 6)
    assert report.growth[1]["disagreement"] == pytest.approx(pairs[0])
    assert report.distances == [one.distance(two) for one, two in pairwise(members)]
    assert [line.split()[0] for line in report.table().splitlines()[2:6]] == ["1", "2", "3", "4"]


def test_a_report_survives_its_file(tmp_path):
    animal = ZOO["mlp"]
    report = tw.Ensemble(animal.module(7), members_of(animal)).report(animal.task, animal.batches())
    report.save(tmp_path / "report.json")
    assert type(report).load(tmp_path / "report.json").to_dict() == report.to_dict()


def test_regression_averages_outputs():
    animal = ZOO["two_inputs"]
    members = members_of(animal)
    ensemble = tw.Ensemble(animal.module(7), members)
    outputs, targets = ensemble.predict(animal.task, animal.batches())
    assert ensemble.score(animal.task, animal.batches())["squared_error"] == pytest.approx(
        float((outputs - targets).square().mean())
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_targets_of_regression_that_are_not_finite_are_the_reason(value):
    module = nn.Linear(2, 1)
    batches = [(torch.ones(3, 2), torch.tensor([[1.0], [value], [2.0]]))]
    with pytest.raises(tw.ThalwegError, match="against finite targets, and these hold NaN or infinity: clean the data"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), batches)


def test_members_are_added_and_pooled():
    animal = ZOO["mlp"]
    members = members_of(animal)
    ensemble = tw.Ensemble(animal.module(7), members[:2])
    ensemble.add(members[2])
    assert len(ensemble) == 3
    whole = tw.Ensemble(animal.module(7), members[:3])
    assert ensemble.score(animal.task, animal.batches()) == whole.score(animal.task, animal.batches())


@pytest.fixture
def saved(tmp_path):
    animal = ZOO["conv_bn"]
    ensemble = tw.Ensemble(animal.module(7), members_of(animal))
    ensemble.save(tmp_path / "ensemble")
    return animal, ensemble, tmp_path / "ensemble"


def test_files_bring_back_the_ensemble(saved):
    animal, ensemble, folder = saved
    back = tw.Ensemble.load(folder, animal.module(8))
    ours, theirs = (e.predict(animal.task, animal.batches())[0] for e in (ensemble, back))
    assert torch.equal(ours, theirs)
    assert [m.made for m in back.members] == [m.made for m in ensemble.members]
    assert back.members[0].made["by"] == "fit"
    assert len(list(folder.glob("*.safetensors"))) == 4


def test_saving_again_keeps_what_is_there_and_drops_what_is_not(saved):
    animal, ensemble, folder = saved
    smaller = tw.Ensemble(animal.module(7), ensemble.members[1:])
    smaller.save(folder)
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert len(tw.Ensemble.load(folder, animal.module(7))) == 3


def test_damaged_members_are_named_and_the_others_stay_usable(saved):
    animal, _, folder = saved
    first, second = sorted(folder.glob("member-*.safetensors"))[:2]
    content = first.read_bytes()
    for damage, message in (
        (lambda: first.write_bytes(content[: len(content) // 2]), "not a whole safetensors file"),
        (lambda: shutil.copy(second, first), "not the member that was saved there"),
        (lambda: tw.Weights.of(nn.Linear(2, 2)).save(first), "not the member that was saved there"),
        (lambda: first.unlink(), "is not a file"),
    ):
        damage()
        with pytest.raises(tw.ThalwegError, match=message) as caught:
            tw.Ensemble.load(folder, animal.module(7))
        assert first.name in str(caught.value)
        assert len(tw.Ensemble.load(folder, animal.module(7), skip=[first.name])) == 3


def test_an_ensemble_is_not_saved_over_something_else(saved, tmp_path):
    _, ensemble, _ = saved
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="nothing is written over"):
        ensemble.save(tmp_path / "mine")
    with pytest.raises(
        tw.ThalwegError, match=r"thesis\.tex holds something that is no ensemble, and nothing is written"
    ):
        ensemble.save(tmp_path / "mine" / "thesis.tex")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_bad_members():
    animal, other = ZOO["conv_bn"], ZOO["mlp"]
    module = animal.module(1)
    with pytest.raises(tw.ThalwegError, match=r"an ensemble needs at least 1 network, .*; got 0"):
        tw.Ensemble(module, [])
    with pytest.raises(tw.ThalwegError, match="the network and member 2 do not describe the same network"):
        tw.Ensemble(module, [tw.Weights.of(module), tw.Weights.of(other.module(1))])
    with pytest.raises(tw.ThalwegError, match="member 1 has no batch-norm statistics"):
        tw.Ensemble(module, [tw.average([tw.Weights.of(module)])])
    with pytest.raises(tw.ThalwegError, match=r"member 1 must be Weights; got Sequential: use Weights\.of"):
        tw.Ensemble(module, [module])
    broken = tw.Weights.of(module)
    broken.vector.fill_(float("nan"))
    with pytest.raises(tw.ThalwegError, match="member 2 predicts NaN"):
        tw.Ensemble(module, [tw.Weights.of(module), broken]).score(animal.task, animal.batches())
    for predict in (lambda net, batch: (net(batch[0]).mean(), batch[1]), lambda net, batch: (net(batch[0]), "a")):
        with pytest.raises(tw.ThalwegError, match="must give tensors with one row for each"):
            tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.Task(animal.task.loss, predict), animal.batches())


def test_batches_in_another_order_each_time_are_noticed():
    from itertools import count

    animal = ZOO["mlp"]
    passes = count()  # which no seed reaches

    class Unruly:
        def __len__(self):
            return 3

        def __iter__(self):
            first = next(passes) % 3
            return iter(animal.batches()[first:] + animal.batches()[:first])

    with pytest.raises(tw.ThalwegError, match="another order in each pass"):
        tw.Ensemble(animal.module(1), members_of(animal, 6)).predict(animal.task, Unruly())
    loader = torch.utils.data.DataLoader(
        [(x, y) for batch in animal.batches() for x, y in zip(*batch, strict=True)], batch_size=4, shuffle=True
    )
    tw.Ensemble(animal.module(1), members_of(animal, 2)).predict(animal.task, loader)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_do_not_depend_on_the_networks_precision(dtype):
    module = nn.Linear(1, 2, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[20.0], [0.0]]))
    batches = [(torch.ones(3, 1, dtype=dtype), torch.tensor([1, 1, 0]))]
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    assert ensemble.score(tw.classification(), batches)["nll"] == pytest.approx(40 / 3, rel=1e-6)
    assert ensemble.predict(tw.classification(), batches)[0].dtype == torch.float32


def test_regression_does_not_broadcast():
    module = nn.Linear(1, 1).double()
    batches = [(torch.ones(3, 1).double(), torch.ones(3).double())]
    with pytest.raises(tw.ThalwegError, match=r"targets of their shape; got \(3, 1\) and torch.float64 \(3,\)"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), batches)


def test_saving_repairs_a_damaged_member_and_spares_another_networks_ensemble(saved):
    animal, ensemble, folder = saved
    first = next(folder.glob("member-*.safetensors"))
    first.write_bytes(first.read_bytes()[:100])
    ensemble.save(folder)
    assert len(tw.Ensemble.load(folder, animal.module(7))) == 4
    other = tw.Ensemble(nn.Linear(2, 3), [tw.Weights.of(nn.Linear(2, 3))])
    with pytest.raises(tw.ThalwegError, match=r"the network and the ensemble in .* do not describe the same network"):
        other.save(folder)
    with pytest.raises(tw.ThalwegError, match="do not describe the same network"):
        tw.Ensemble.load(folder, nn.Linear(2, 3))
    assert len(tw.Ensemble.load(folder, animal.module(7))) == 4


@pytest.mark.parametrize("fits", [4096, 300, 40])
def test_predictions_come_in_batches_as_large_as_there_is_room_for(fits, monkeypatch):
    torch.manual_seed(0)
    images, labels = torch.randint(256, (500, 1, 4, 4), dtype=torch.uint8), torch.randint(3, (500,))
    module, seen = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), []

    def predict(net, batch):
        seen.append(len(batch[0]))
        if len(batch[0]) > fits:
            raise torch.OutOfMemoryError("no more room")
        return net(batch[0]), batch[1]

    task = tw.Task(tw.classification().loss, predict)
    batches = tw.data.DeviceBatches(images, labels, 32, mean=(0.5,), std=(0.25,))
    with monkeypatch.context() as patch:
        patch.setattr("thalweg.evaluation.measure._widest", lambda device: 4096)
        found, targets = predicted(module, task, batches, torch.device("cpu"), lambda outputs, wanted: outputs)
    plain, _ = predicted(module, task, batches, torch.device("cpu"), lambda outputs, wanted: outputs)
    assert torch.equal(targets, labels)
    assert torch.allclose(found, plain, atol=1e-6)
    tried = seen[: -len(batches)]
    assert tried[0] == 500
    assert max(size for size in tried if size <= fits) == {4096: 500, 300: 256, 40: 32}[fits]
    with pytest.raises(torch.OutOfMemoryError):
        predicted(
            module, task, [(torch.zeros(5000, 1, 4, 4), torch.zeros(5000).long())], torch.device("cpu"), lambda x, _: x
        )


def test_a_save_that_was_killed_before_its_manifest_can_be_made_again(tmp_path):
    animal = ZOO["mlp"]
    ensemble = tw.Ensemble(animal.module(1), members_of(animal, 2))
    ensemble.save(tmp_path / "e")
    (tmp_path / "e" / "ensemble.json").unlink()
    next((tmp_path / "e").glob("member-*")).unlink()
    (tmp_path / "e" / ".member-0.safetensors.abc.thalweg-part").mkdir()
    ensemble.save(tmp_path / "e")
    assert len(tw.Ensemble.load(tmp_path / "e", animal.module(1)).members) == 2
    assert len(list((tmp_path / "e").iterdir())) == 3


def test_a_folder_with_a_file_that_is_no_member_is_left_alone(tmp_path):
    animal = ZOO["mlp"]
    (tmp_path / "member-of-parliament.safetensors").symlink_to("/dev/null")
    with pytest.raises(tw.ThalwegError, match="no ensemble"):
        tw.Ensemble(animal.module(1), members_of(animal, 1)).save(tmp_path)


def spoiled(value=torch.nan):
    batches = ZOO["mlp"].batches()
    x = batches[1][0].clone()
    x[2, 1] = value
    return [batches[0], (x, batches[1][1]), batches[2]]


@pytest.mark.parametrize(("value", "name"), [(torch.nan, "NaN"), (torch.inf, "infinity")])
def test_bad_inputs_are_not_blamed_on_a_member(value, name):
    module, task = nn.Linear(4, 3).double(), tw.classification()
    point = tw.Weights.of(module)
    for call in (
        lambda: tw.Ensemble(module, [point, point]).score(task, spoiled(value)),
        lambda: tw.curve_ensemble(
            module, tw.Segment(point, point), task, spoiled(value), bn_batches=spoiled(0.0), points=2
        ),
    ):
        with pytest.raises(tw.ThalwegError, match=f"item 0 of batch 2 holds {name}, so the network is not the cause"):
            call()


def test_a_member_that_has_diverged_is_named_with_its_tensor():
    animal = ZOO["mlp"]
    good, bad = animal.ends()
    bad.vector[0] = torch.nan
    with pytest.raises(tw.ThalwegError, match=r"member 2 predicts NaN or infinity: its '0\.weight' is not finite"):
        tw.Ensemble(animal.module(1), [good, bad]).score(animal.task, animal.batches())


def test_an_overflow_within_is_said_to_be_one():
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(1e30)
    batches = [(torch.full((2, 2), 1e30), torch.tensor([0, 1]))]
    with pytest.raises(tw.ThalwegError, match="something overflows within"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.classification(), batches)
