"""Frozen parameters that points have in common are held once in memory and stored once on disk."""

import gc
from functools import partial

import pytest
import torch
from torch import nn

import thalweg as tw

BASE, ADAPTER = 4 * (512 * 512 + 512), 4 * 2 * 512 * 2  # bytes


class Adapted(nn.Module):
    """A frozen layer with a trainable correction of rank two, as in LoRA."""

    def __init__(self, seed=0, base=7):
        super().__init__()
        torch.manual_seed(base)
        self.layer = nn.Linear(512, 512).requires_grad_(False)
        torch.manual_seed(seed)
        self.down, self.up = nn.Linear(512, 2, bias=False), nn.Linear(2, 512, bias=False)

    def forward(self, x):
        return (self.layer(x) + self.up(self.down(x)))[:, :3]


BATCHES = [(torch.randn(8, 512, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3) for _ in range(4)]


def memory(points):
    """Bytes of everything the points hold, each piece of memory once."""
    tensors = [tensor for point in points for tensor in (point.vector, *point.frozen.values(), *point.buffers.values())]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def points(count):
    return [tw.Weights.of(Adapted(seed)) for seed in range(count)]


def members(run=None):
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=1e-2, lr_min=1e-3)
    return tw.walk(Adapted(), tw.classification(), BATCHES, method, epochs=3, run=run).members


def test_weights_with_equal_frozen_bases_share_one():
    a, b = points(2)
    assert a.frozen["layer.weight"] is b.frozen["layer.weight"]
    assert memory([a, b]) == BASE + 2 * ADAPTER


def test_curve_of_many_bends_holds_one_frozen_base():
    curve = tw.connect(Adapted(), tw.Bezier(*points(2), bends=5), tw.classification(), BATCHES, epochs=1, lr=1e-2)
    assert memory(curve.points) == BASE + 7 * ADAPTER


def test_fit_and_walk_hold_one_frozen_base():
    trained = tw.fit(Adapted(), tw.classification(), BATCHES, epochs=2, lr=1e-2, keep=[1])
    found = [trained, trained.kept[1].weights, *members()]
    assert len(found) == 8
    assert memory([*found, *tw.Ensemble(Adapted(), found).members]) == BASE + 8 * ADAPTER


def test_frozen_bases_of_other_values_are_not_shared():
    a, b = tw.Weights.of(Adapted()), tw.Weights.of(Adapted(base=8))
    assert not torch.equal(a.frozen["layer.weight"], b.frozen["layer.weight"])
    with pytest.raises(tw.ThalwegError, match=r"the frozen parameter 'layer\.weight' differs"):
        tw.Segment(a, b)


def test_frozen_bases_are_shared_only_bit_for_bit():
    plus, minus = Adapted(), Adapted()
    plus.layer.bias.zero_()
    minus.layer.bias.zero_().neg_()
    a, b = tw.Weights.of(plus), tw.Weights.of(minus)
    assert not bool(a.frozen["layer.bias"].signbit().any())
    assert bool(b.frozen["layer.bias"].signbit().all())


def test_frozen_base_is_not_the_modules_own():
    module = Adapted()
    weights = tw.Weights.of(module)
    before = weights.frozen["layer.bias"].clone()
    module.layer.bias.add_(1)
    assert torch.equal(weights.frozen["layer.bias"], before)
    assert not torch.equal(tw.Weights.of(module).frozen["layer.bias"], before)


def test_frozen_base_is_freed_with_the_last_point():
    from thalweg.runtime.compute import present

    held = present.get().frozen

    weights = tw.Weights.of(Adapted(base=9))
    shape = weights.frozen["layer.weight"].shape
    count = sum(tensor.shape == shape for tensor in held.values())
    del weights
    gc.collect()
    assert sum(tensor.shape == shape for tensor in held.values()) == count - 1


def test_curve_file_holds_one_frozen_base(tmp_path):
    curve = tw.Bezier(*points(2), bends=5)
    curve.save(tmp_path / "curve.safetensors")
    assert BASE + 7 * ADAPTER < size(tmp_path) < 1.02 * (BASE + 7 * ADAPTER)
    back = tw.Curve.load(tmp_path / "curve.safetensors")
    assert memory(back.points) == BASE + 7 * ADAPTER
    for one, two in zip(curve.points, back.points, strict=True):
        assert one.digest() == two.digest()


def test_ensemble_folder_holds_one_frozen_base(tmp_path):
    ensemble = tw.Ensemble(Adapted(), points(6))
    ensemble.save(tmp_path)
    assert BASE + 6 * ADAPTER < size(tmp_path) < 1.03 * (BASE + 6 * ADAPTER)
    back = tw.Ensemble.load(tmp_path, Adapted())
    assert [m.digest() for m in back.members] == [m.digest() for m in ensemble.members]
    assert memory(back.members) == BASE + 6 * ADAPTER


def test_ensemble_members_may_have_frozen_bases_of_their_own(tmp_path):
    ensemble = tw.Ensemble(Adapted(), [tw.Weights.of(Adapted(seed, base)) for seed, base in ((1, 7), (2, 8), (3, 7))])
    ensemble.save(tmp_path)
    assert len(list(tmp_path.glob("base-*"))) == 2
    back = tw.Ensemble.load(tmp_path, Adapted())
    assert [m.digest() for m in back.members] == [m.digest() for m in ensemble.members]
    tw.Ensemble(Adapted(), ensemble.members[:1]).save(tmp_path)
    assert len(list(tmp_path.glob("base-*"))) == 1


def test_run_folder_holds_one_frozen_base_with_collected_and_one_in_members(tmp_path):
    found = members(run=tmp_path)
    assert len(found) == 6
    assert size(tmp_path) < 1.05 * 2 * (BASE + 6 * ADAPTER)
    assert [m.digest() for m in found] == [m.digest() for m in members()]
    assert [m.digest() for m in members(run=tmp_path)] == [m.digest() for m in found]


def test_kept_epochs_share_a_frozen_base(tmp_path):
    arguments = {"epochs": 5, "lr": 1e-2, "keep": [1, 2, 3, 4], "run": tmp_path}
    trained = tw.fit(Adapted(), tw.classification(), BATCHES, **arguments)
    assert size(tmp_path) < 1.05 * (2 * BASE + (1 + 2 * 4) * ADAPTER)  # weights.safetensors is whole
    again = tw.fit(Adapted(), tw.classification(), BATCHES, **arguments)
    assert again.kept[3].weights.digest() == trained.kept[3].weights.digest()


def test_weights_file_holds_its_frozen_base_unless_asked(tmp_path):
    weights = tw.Weights.of(Adapted())
    weights.save(tmp_path / "whole.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.safetensors"]
    weights.save(tmp_path / "part.safetensors", apart=True)
    assert tw.Weights.load(tmp_path / "part.safetensors").digest() == weights.digest()


def test_weights_load_names_a_missing_frozen_base(tmp_path):
    tw.Weights.of(Adapted()).save(tmp_path / "part.safetensors", apart=True)
    next(tmp_path.glob("base-*")).unlink()
    with pytest.raises(
        tw.ThalwegError, match=r"part\.safetensors holds only trainable parameters.*base-\w+\.safetensors.*one folder"
    ):
        tw.Weights.load(tmp_path / "part.safetensors")


def test_ensemble_save_leaves_foreign_frozen_bases(tmp_path):
    module = Adapted(1)
    other = tw.Weights.of(Adapted(2, base=8))
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    ensemble.save(tmp_path / "both")
    other.save(tmp_path / "both" / "extra.safetensors", apart=True)
    ensemble.save(tmp_path / "both")
    assert tw.Weights.load(tmp_path / "both" / "extra.safetensors").distance(other) == 0


class MovingTarget(Adapted):
    """Writes to its frozen layer in every training pass from the given one on, as momentum encoders do."""

    def __init__(self, seed=0, since=1):
        super().__init__(seed)
        self.since, self.passes = since, 0

    def forward(self, x):
        self.passes += self.training
        if self.training and self.passes >= self.since:
            with torch.no_grad():
                self.layer.weight.data[:, :2].mul_(0.9).add_(self.up.weight, alpha=0.1)  # a view of its values
        return super().forward(x)


@pytest.fixture
def large(monkeypatch):
    """As if frozen parameters were large, so that training shares those of the caller."""
    monkeypatch.setattr("thalweg.weightspace.probe.LARGE", 1000)


@pytest.mark.parametrize("kind", [Adapted, MovingTarget])
def test_training_with_a_large_frozen_base_is_plain_training(kind, large):
    check_training(kind)


@pytest.mark.parametrize("since", [1, 3])
def test_small_frozen_base_may_be_written_to_at_any_time(since):
    check_training(partial(MovingTarget, since=since))


class Merging(Adapted):
    """As loralib does: `eval()` adds the low-rank part to the frozen weight in place, `train()` takes it away."""

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if self.merged == mode:
            self.layer.weight.data.add_(self.up.weight @ self.down.weight, alpha=-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x):
        return self.layer(x)[:, :3] if self.merged else super().forward(x)


class Announcing(Adapted):
    """As transformers' networks: `train()` is overridden, and writes to nothing."""

    def train(self, mode=True):
        return super().train(mode)


@pytest.mark.parametrize("kind", [Merging, Announcing])
def test_large_frozen_base_is_kept_whatever_train_does(kind, large):
    module, curve = kind(), tw.Bezier(*(tw.Weights.of(kind(seed)) for seed in range(2)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    settings = {"epochs": 2, "lr": 1e-2}
    found, plain = (
        tw.connect(each, curve, tw.classification(), BATCHES, **settings).bends[0].vector
        for each in (module, Adapted())
    )
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)


def check_training(kind):
    module = kind().double()
    batches = [(x.double(), y) for x, y in BATCHES]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    settings = {"epochs": 2, "schedule": lambda i: 0.1, "momentum": 0.0}
    trained = tw.fit(module, tw.classification(), batches, **settings).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    reference = kind().double()
    optimizer = torch.optim.SGD([reference.down.weight, reference.up.weight], lr=0.1)
    for x, y in batches * 2:
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimizer.step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-12, atol=1e-12)
    assert torch.equal(trained["layer.weight"], before["layer.weight"]) == (kind is Adapted)


@pytest.mark.parametrize("kind", [Adapted, Announcing])
def test_training_holds_no_second_large_frozen_base(kind, peak_bytes, monkeypatch, large):
    """Of the module, its ends and the trained copy together: one base in the module, one in the points."""
    monkeypatch.setattr("thalweg.weightspace.weights.BLOCK", 10_000)
    curve, module = tw.Bezier(*points(2)), kind()
    settings = {"epochs": 2, "lr": 1e-2, "optimizer": torch.optim.AdamW}
    assert peak_bytes(lambda: tw.connect(module, curve, tw.classification(), BATCHES, **settings)) < 0.5 * BASE
    assert peak_bytes(lambda: tw.scan(module, curve, tw.classification(), {"x": BATCHES}, points=3)) > BASE


def test_module_with_another_frozen_base_is_left_alone(large):
    curve, other = tw.Bezier(*points(2)), Adapted(base=8)
    before = other.layer.weight.detach().clone()
    settings = {"epochs": 2, "lr": 1e-2}
    one, two = (tw.connect(m, curve, tw.classification(), BATCHES, **settings) for m in (other, Adapted()))
    assert torch.equal(other.layer.weight, before)
    assert torch.equal(one.bends[0].vector, two.bends[0].vector)


def test_large_frozen_base_written_to_after_the_first_pass_is_named(large):
    with pytest.raises(tw.ThalwegError, match=r"the frozen parameter 'layer.weight' was written to after the first"):
        tw.fit(MovingTarget(since=3), tw.classification(), BATCHES, epochs=1, lr=0.1)


def test_tensor_beside_a_frozen_parameter_follows_it():
    """With the base of the curve, not that of the module that was given."""

    class Beside(Adapted):
        def forward(self, x):
            return super().forward(x) + x @ self.alias[:, :3]

    def beside(seed, base=7):
        module = Beside(seed, base)
        module.alias = module.layer.weight.data
        return module

    curve = tw.Bezier(*(tw.Weights.of(beside(seed)) for seed in range(2)))
    one, two = (tw.connect(beside(0, base), curve, tw.classification(), BATCHES, epochs=1, lr=1e-2) for base in (7, 8))
    assert torch.equal(one.bends[0].vector, two.bends[0].vector)
