"""Ensembles: probabilities are averaged, whatever the order, and files are what they say."""

import copy
import pickle
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


def members_of(case, count=4):
    return [tw.fit(case.module(seed), case.task, case.batches(), epochs=2, lr=0.1) for seed in range(count)]


def naive(case, members, average_logits=False):
    """Load, predict, average; float64 throughout."""
    total = 0
    for weights in members:
        net = case.module(9)
        weights.load_into(net)
        getattr(net, "_orig_mod", net).eval()
        with torch.no_grad():
            logits = torch.cat([case.task.predict(net, batch)[0] for batch in case.batches()])
        total = total + (logits if average_logits else logits.softmax(1))
    return (total / len(members)).softmax(1) if average_logits else total / len(members)


@pytest.mark.parametrize("name", LABELLED)
def test_ensemble_probabilities_are_the_naive_loops(name):
    case = ZOO[name]
    members, module = members_of(case), case.module(7)
    before = bits(module)
    ours, targets = tw.Ensemble(module, members).predict(case.task, case.batches())
    assert same_bits(before, bits(module))
    assert torch.allclose(ours, naive(case, members), rtol=1e-12)
    assert not torch.allclose(ours, naive(case, members, average_logits=True), rtol=1e-6)
    expected = torch.cat([case.task.predict(lambda *a, **k: case.module(1)(*a, **k), b)[1] for b in case.batches()])
    assert torch.equal(targets, expected)


def test_ensemble_of_one_is_the_network():
    case = ZOO["conv_bn"]
    [member] = members_of(case, 1)
    ours, _ = tw.Ensemble(case.module(7), [member]).predict(case.task, case.batches())
    assert torch.equal(ours, naive(case, [member]))
    scan = tw.scan(case.module(7), [member], case.task, {"x": case.batches()})
    score = tw.Ensemble(case.module(7), [member]).score(case.task, case.batches())
    assert score["error"] == scan.values["x"]["error"][0]
    assert score["nll"] == pytest.approx(scan.values["x"]["data_loss"][0], rel=1e-12)
    assert score["disagreement"] == 0


def test_ensemble_does_not_depend_on_the_order_of_members():
    case = ZOO["conv_bn"]
    members = members_of(case)
    scores = [tw.Ensemble(case.module(7), order).score(case.task, case.batches()) for order in (members, members[::-1])]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_ensemble_report_is_what_the_parts_say():
    case = ZOO["conv_bn"]
    members = members_of(case)
    report = tw.Ensemble(case.module(7), members).report(case.task, case.batches())
    labels = torch.cat([y for _, y in case.batches()])
    alone = [naive(case, [member]) for member in members]
    for k in range(1, 5):
        assert report.growth[k - 1]["error"] == metrics.error(naive(case, members[:k]), labels)
        assert report.growth[k - 1]["brier"] == pytest.approx(metrics.brier(naive(case, members[:k]), labels))
        assert report.members[k - 1]["nll"] == pytest.approx(metrics.nll(alone[k - 1], labels))
    chosen = [p.argmax(1) for p in alone]
    pairs = [(chosen[i] != chosen[j]).double().mean().item() for i in range(4) for j in range(i)]
    assert report.scores["disagreement"] == pytest.approx(sum(pairs) / 6)
    assert report.growth[1]["disagreement"] == pytest.approx(pairs[0])
    assert report.distances == [one.distance(two) for one, two in pairwise(members)]
    assert [line.split()[0] for line in report.table().splitlines()[2:6]] == ["1", "2", "3", "4"]


def test_ensemble_of_regression_averages_outputs():
    case = ZOO["two_inputs"]
    members = members_of(case)
    ensemble = tw.Ensemble(case.module(7), members)
    outputs, targets = ensemble.predict(case.task, case.batches())
    assert ensemble.score(case.task, case.batches())["squared_error"] == pytest.approx(
        float((outputs - targets).square().mean())
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_ensemble_names_regression_targets_that_are_not_finite(value):
    module = nn.Linear(2, 1)
    batches = [(torch.ones(3, 2), torch.tensor([[1.0], [value], [2.0]]))]
    with pytest.raises(tw.ThalwegError, match="against finite targets, and these hold NaN or infinity: clean the data"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), batches)


def test_ensemble_members_are_added_and_pooled():
    case = ZOO["mlp"]
    members = members_of(case)
    ensemble = tw.Ensemble(case.module(7), members[:2])
    ensemble.add(members[2])
    assert len(ensemble) == 3
    whole = tw.Ensemble(case.module(7), members[:3])
    assert ensemble.score(case.task, case.batches()) == whole.score(case.task, case.batches())


@pytest.fixture
def saved(tmp_path):
    case = ZOO["conv_bn"]
    ensemble = tw.Ensemble(case.module(7), members_of(case))
    ensemble.save(tmp_path / "ensemble")
    return case, ensemble, tmp_path / "ensemble"


def test_ensemble_save_and_load(saved):
    case, ensemble, folder = saved
    back = tw.Ensemble.load(folder, case.module(8))
    ours, theirs = (e.predict(case.task, case.batches())[0] for e in (ensemble, back))
    assert torch.equal(ours, theirs)
    assert [m.made for m in back.members] == [m.made for m in ensemble.members]
    assert back.members[0].made["by"] == "fit"
    assert len(list(folder.glob("*.safetensors"))) == 4


def test_ensemble_save_keeps_members_and_drops_stale_ones(saved):
    case, ensemble, folder = saved
    smaller = tw.Ensemble(case.module(7), ensemble.members[1:])
    smaller.save(folder)
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert len(tw.Ensemble.load(folder, case.module(7))) == 3


def test_ensemble_load_names_damaged_members_and_keeps_the_others(saved):
    case, _, folder = saved
    first, second = sorted(folder.glob("member-*.safetensors"))[:2]
    content = first.read_bytes()
    for damage, message in (
        (lambda: first.write_bytes(content[: len(content) // 2]), "not a whole safetensors file"),
        (lambda: shutil.copy(second, first), "not the member that was saved there"),
        (lambda: tw.Weights.of(nn.Linear(2, 2)).save(first), "not the member that was saved there"),
        (lambda: first.unlink(), "does not exist"),
    ):
        damage()
        with pytest.raises(tw.ThalwegError, match=message) as caught:
            tw.Ensemble.load(folder, case.module(7))
        assert first.name in str(caught.value)
        assert len(tw.Ensemble.load(folder, case.module(7), skip=[first.name])) == 3


def test_ensemble_is_not_saved_over_something_else(saved, tmp_path):
    _, ensemble, _ = saved
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(tw.ThalwegError, match="is never overwritten"):
        ensemble.save(tmp_path / "mine")
    with pytest.raises(
        tw.ThalwegError, match=r"thesis\.tex holds something other than an ensemble, and is never overwritten"
    ):
        ensemble.save(tmp_path / "mine" / "thesis.tex")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_ensemble_refuses_bad_members():
    case, other = ZOO["conv_bn"], ZOO["mlp"]
    module = case.module(1)
    with pytest.raises(tw.ThalwegError, match=r"an ensemble needs at least 1 network, .*; got 0"):
        tw.Ensemble(module, [])
    with pytest.raises(tw.ThalwegError, match="the network and member 2 do not describe the same network"):
        tw.Ensemble(module, [tw.Weights.of(module), tw.Weights.of(other.module(1))])
    with pytest.raises(tw.ThalwegError, match=r"member 1 has no batch-norm statistics, .* in Python with update_bn"):
        tw.Ensemble(module, [tw.average([tw.Weights.of(module)])])
    with pytest.raises(tw.ThalwegError, match=r"member 1 must be Weights; got Sequential: use Weights\.of"):
        tw.Ensemble(module, [module])
    broken = tw.Weights.of(module)
    broken.vector.fill_(float("nan"))
    with pytest.raises(tw.ThalwegError, match="member 2 predicts NaN"):
        tw.Ensemble(module, [tw.Weights.of(module), broken]).score(case.task, case.batches())
    for predict in (lambda net, batch: (net(batch[0]).mean(), batch[1]), lambda net, batch: (net(batch[0]), "a")):
        with pytest.raises(tw.ThalwegError, match="let predict= give a tensor with a row for each example"):
            tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.Task(case.task.loss, predict), case.batches())


def test_ensemble_notices_batches_in_another_order():
    from itertools import count

    case = ZOO["mlp"]
    passes = count()  # which no seed reaches

    class Unruly:
        def __len__(self):
            return 3

        def __iter__(self):
            first = next(passes) % 3
            return iter(case.batches()[first:] + case.batches()[:first])

    with pytest.raises(tw.ThalwegError, match="another order in each pass"):
        tw.Ensemble(case.module(1), members_of(case, 6)).predict(case.task, Unruly())
    loader = torch.utils.data.DataLoader(
        [(x, y) for batch in case.batches() for x, y in zip(*batch, strict=True)], batch_size=4, shuffle=True
    )
    tw.Ensemble(case.module(1), members_of(case, 2)).predict(case.task, loader)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_ensemble_scores_do_not_depend_on_the_networks_precision(dtype):
    module = nn.Linear(1, 2, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[20.0], [0.0]]))
    batches = [(torch.ones(3, 1, dtype=dtype), torch.tensor([1, 1, 0]))]
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    assert ensemble.score(tw.classification(), batches)["nll"] == pytest.approx(40 / 3, rel=1e-6)
    assert ensemble.predict(tw.classification(), batches)[0].dtype == torch.float32


def test_ensemble_of_regression_does_not_broadcast():
    module = nn.Linear(1, 1).double()
    batches = [(torch.ones(3, 1).double(), torch.ones(3).double())]
    with pytest.raises(tw.ThalwegError, match=r"targets of their shape; got \(3, 1\) and torch.float64 \(3,\)"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.regression(), batches)


def test_ensemble_save_repairs_a_damaged_member_and_spares_another_networks_ensemble(saved):
    case, ensemble, folder = saved
    first = next(folder.glob("member-*.safetensors"))
    first.write_bytes(first.read_bytes()[:100])
    ensemble.save(folder)
    assert len(tw.Ensemble.load(folder, case.module(7))) == 4
    other = tw.Ensemble(nn.Linear(2, 3), [tw.Weights.of(nn.Linear(2, 3))])
    with pytest.raises(tw.ThalwegError, match=r"the network and the ensemble in .* do not describe the same network"):
        other.save(folder)
    with pytest.raises(tw.ThalwegError, match="do not describe the same network"):
        tw.Ensemble.load(folder, nn.Linear(2, 3))
    assert len(tw.Ensemble.load(folder, case.module(7))) == 4


@pytest.mark.parametrize("fits", [4096, 300, 40])
def test_ensemble_predicts_in_batches_as_large_as_memory_allows(fits, monkeypatch):
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
        patch.setattr("thalweg.evaluation.measure._largest_batch", lambda device: 4096)
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


def test_ensemble_save_killed_before_its_manifest_can_be_repeated(tmp_path):
    case = ZOO["mlp"]
    ensemble = tw.Ensemble(case.module(1), members_of(case, 2))
    ensemble.save(tmp_path / "e")
    (tmp_path / "e" / "ensemble.json").unlink()
    next((tmp_path / "e").glob("member-*")).unlink()
    (tmp_path / "e" / ".member-0.safetensors.abc.thalweg-part").mkdir()
    ensemble.save(tmp_path / "e")
    assert len(tw.Ensemble.load(tmp_path / "e", case.module(1)).members) == 2
    assert len(list((tmp_path / "e").iterdir())) == 3


def test_ensemble_save_leaves_a_folder_with_a_foreign_file_alone(tmp_path):
    case = ZOO["mlp"]
    (tmp_path / "member-of-parliament.safetensors").symlink_to("/dev/null")
    with pytest.raises(tw.ThalwegError, match="something other than an ensemble"):
        tw.Ensemble(case.module(1), members_of(case, 1)).save(tmp_path)


def spoiled(value=torch.nan):
    batches = ZOO["mlp"].batches()
    x = batches[1][0].clone()
    x[2, 1] = value
    return [batches[0], (x, batches[1][1]), batches[2]]


@pytest.mark.parametrize(("value", "name"), [(torch.nan, "NaN"), (torch.inf, "infinity")])
def test_ensemble_does_not_blame_bad_inputs_on_a_member(value, name):
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


def test_ensemble_names_a_diverged_member_with_its_tensor():
    case = ZOO["mlp"]
    good, bad = case.ends()
    bad.vector[0] = torch.nan
    with pytest.raises(tw.ThalwegError, match=r"member 2 predicts NaN or infinity: its '0\.weight' is not finite"):
        tw.Ensemble(case.module(1), [good, bad]).score(case.task, case.batches())


def test_ensemble_names_an_overflow_inside_the_network():
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(1e30)
    batches = [(torch.full((2, 2), 1e30), torch.tensor([0, 1]))]
    with pytest.raises(tw.ThalwegError, match="something overflows within"):
        tw.Ensemble(module, [tw.Weights.of(module)]).score(tw.classification(), batches)


class Spectrum(nn.Module):
    """Real weights, complex outputs."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 6).double()

    def forward(self, x):
        return torch.view_as_complex(self.last(x).reshape(-1, 3, 2))


def test_ensemble_of_complex_outputs_has_their_probabilities_or_is_refused():
    modules = [Spectrum() for _ in range(2)]
    ensemble = tw.Ensemble(modules[0], [tw.Weights.of(module) for module in modules])
    x, labels = torch.randn(5, 4).double(), torch.tensor([0, 1, 2, 0, 1])
    magnitudes = tw.Task(
        lambda outputs, labels: outputs.abs()[:, 0], probabilities=lambda outputs: outputs.abs().softmax(1)
    )
    found, _ = ensemble.predict(magnitudes, [(x, labels)])
    assert torch.allclose(found, sum(module(x).detach().abs().softmax(1) for module in modules) / 2, atol=1e-6)
    plain = tw.Task(lambda outputs, targets: (outputs - targets).abs().mean(1))
    with pytest.raises(tw.ThalwegError, match=r"complex.* let predict= give real numbers, such as torch\.view_as_real"):
        ensemble.predict(plain, [(x, modules[0](x).detach())])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (None, "those of this batch are None: give data with labels"),
        (
            {"label": torch.zeros(5)},
            "the targets of this batch are dict: let predict= give a tensor with a row for each",
        ),
        (torch.tensor(1.0), r"the targets of this batch are torch.float32 \(\): let predict= give a tensor with a row"),
    ],
)
def test_ensemble_says_which_targets_it_cannot_score(targets, message):
    net = nn.Linear(4, 3)
    task = tw.Task(lambda outputs, targets: outputs.square().mean(1), lambda net, batch: (net(batch[0]), targets))
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Ensemble(net, [tw.Weights.of(net)]).predict(task, [(torch.randn(5, 4), 0)])


def test_ensemble_says_which_outputs_it_cannot_score():
    net = nn.Linear(4, 3)
    task = tw.Task(lambda outputs, targets: outputs, lambda net, batch: (net(batch[0]).sum(), batch[1]))
    with pytest.raises(tw.ThalwegError, match=r"the outputs of this batch are torch.float64 \(\): let predict="):
        tw.Ensemble(net, [tw.Weights.of(net)]).predict(task, [(torch.randn(5, 4), torch.ones(5))])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda ensemble: pickle.loads(pickle.dumps(ensemble))])
def test_ensemble_can_be_copied_and_pickled(again):
    case = ZOO["mlp"]
    ensemble = tw.Ensemble(case.module(1), [tw.Weights.of(case.module(seed)) for seed in (1, 2)])
    ensemble.temperature = 2.0
    found = again(ensemble)
    assert found.temperature == 2.0
    assert torch.equal(*(each.predict(case.task, case.batches())[0] for each in (ensemble, found)))
