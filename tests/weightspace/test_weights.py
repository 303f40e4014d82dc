"""Points: module <-> vector, agreement, files."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.weightspace.layout import Layout


@pytest.mark.parametrize("name", ZOO)
def test_weights_carry_a_module_into_another(name):
    case = ZOO[name]
    module, other = case.module(1), case.module(2)
    weights = tw.Weights.of(module)
    weights.load_into(other)
    back = tw.Weights.of(other)
    assert torch.equal(weights.vector, back.vector)
    assert weights.buffers.keys() == back.buffers.keys()
    inner = getattr(module, "_orig_mod", module)
    assert weights.state_dict().keys() == inner.state_dict().keys()
    inner.load_state_dict(weights.state_dict())
    assert weights.distance(back) == 0


def test_weights_vector_is_a_copy():
    module = nn.Linear(2, 2)
    weights = tw.Weights.of(module)
    weights.vector.zero_()
    assert module.weight.abs().sum() > 0


def test_weights_vector_order_does_not_depend_on_memory_format():
    module = nn.Conv2d(3, 4, 3)
    plain = tw.Weights.of(module).vector
    assert torch.equal(plain, tw.Weights.of(module.to(memory_format=torch.channels_last)).vector)


def test_tied_weights_move_once():
    layout = Layout.of(ZOO["tied_lstm"].module(0))
    assert "output.weight" not in layout.names
    assert dict(layout.aliases) == {"output.weight": "embedding.weight"}


def test_frozen_weights_do_not_move():
    weights = tw.Weights.of(ZOO["frozen"].module(0))
    assert weights.layout.frozen == ("0.weight",)
    assert weights.layout.size == 8 + 24 + 3


def test_non_persistent_buffers_are_no_part_of_the_weights():
    module = nn.Linear(2, 2)
    module.register_buffer("state", torch.ones(3), persistent=False)
    module.register_buffer("scale", torch.ones(3))
    assert list(tw.Weights.of(module).buffers) == ["scale"]


def test_distance_is_euclidean_in_float64():
    a, b = ZOO["mlp"].ends()
    assert a.distance(b) == pytest.approx(float((a.vector - b.vector).norm()), rel=1e-14)
    near = tw.Weights(a.layout, a.vector + 1e-9)
    assert a.distance(near) == pytest.approx(1e-9 * a.layout.size**0.5, rel=1e-5)


def test_average_equals_the_mean_and_drops_statistics():
    points = [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in range(3)]
    mean = tw.average(points)
    assert torch.allclose(mean.vector, torch.stack([p.vector for p in points]).mean(0), rtol=1e-14)
    assert points[0].has_statistics
    assert not mean.has_statistics
    weighted = tw.average(points, [0.5, 0.25, 0.25])
    assert torch.allclose(
        weighted.vector, 0.5 * points[0].vector + 0.25 * (points[1].vector + points[2].vector), rtol=1e-14
    )


def test_average_in_half_precision_sums_in_single():
    points = [tw.Weights.of(nn.Linear(64, 64).bfloat16()) for _ in range(16)]
    exact = torch.stack([p.vector.float() for p in points]).mean(0)
    assert torch.equal(tw.average(points).vector, exact.bfloat16())


@pytest.mark.parametrize(("coefficients", "count"), [([0.5, 0.4], 2), ([1.0], 2), ([], 0)])
def test_average_needs_coefficients_that_add_up_to_one(coefficients, count):
    points = [tw.Weights.of(nn.Linear(1, 1)) for _ in range(count)]
    with pytest.raises(tw.ThalwegError, match="average needs"):
        tw.average(points, coefficients)


def test_load_into_refuses_weights_without_batch_norm_statistics():
    case = ZOO["conv_bn"]
    module, members = case.module(0), [tw.Weights.of(case.module(seed)) for seed in (1, 2)]
    before = bits(module)
    with pytest.raises(
        tw.ThalwegError, match=r"these have no '1\.running_mean'.*update_bn\(module, weights, batches\)"
    ):
        tw.average(members).load_into(module)
    assert same_bits(before, bits(module))
    tw.update_bn(module, tw.average(members), case.batches()).load_into(module)
    assert torch.equal(module[4].weight, torch.stack([m.state_dict()["4.weight"] for m in members]).mean(0))
    assert module[1].running_mean.abs().max() > 0


@pytest.mark.parametrize("name", ZOO)
def test_weights_save_and_load_every_bit(name, tmp_path):
    weights = tw.Weights.of(ZOO[name].module(1))
    weights.save(tmp_path / "w.safetensors")
    back = tw.Weights.load(tmp_path / "w.safetensors")
    assert back.layout == weights.layout
    for one, two in ((weights.buffers, back.buffers), (weights.frozen, back.frozen)):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) and one[key].dtype == two[key].dtype for key in one)
    assert torch.equal(back.vector, weights.vector)


def test_weights_from_state_of_a_state_dict():
    module = ZOO["conv_bn"].module(1)
    before = bits(module)
    state = ZOO["conv_bn"].module(2).state_dict()
    weights = tw.Weights.from_state(state, module)
    assert torch.equal(weights.state_dict()["0.weight"], state["0.weight"])
    assert same_bits(before, bits(module))
    del state["1.bias"]
    with pytest.raises(tw.ThalwegError, match=r"'1\.bias' is in the network but not in the state dict"):
        tw.Weights.from_state(state, module)


def test_mismatched_weights_name_the_tensor():
    ten, hundred = (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, n)) for n in (10, 100))
    message = r"start and end do not describe the same network: '1\.weight' is \(10, 8\) in start and \(100, 8\) in end"
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Segment(tw.Weights.of(ten), tw.Weights.of(hundred))


def _with(change) -> tw.Weights:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5)
    module.register_buffer("scale", torch.ones(2))
    change(module)
    return tw.Weights.of(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.append(nn.Linear(4, 4)), r"'3\.weight' is in end but not in start"),
        (lambda m: m[0].weight.requires_grad_(False), r"'0\.weight' is trainable in start and frozen in end"),
        (lambda m: m.double(), r"float32 in start and torch\.float64 in end"),
        (lambda m: m.scale.zero_(), "the buffer 'scale' differs"),
        (lambda m: setattr(m[2], "weight", m[0].weight), r"'2\.weight' is in start but not in end"),
        (lambda m: m.register_buffer("more", torch.ones(1)), "buffer 'more' is in only one of them"),
    ],
)
def test_mismatched_weights_are_refused(change, message):
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Segment(_with(lambda m: None), _with(change))


def test_frozen_weights_must_be_equal():
    def freeze(value):
        def change(module):
            module[0].weight.requires_grad_(False).fill_(value)

        return change

    with pytest.raises(tw.ThalwegError, match=r"the frozen parameter '0\.weight' differs"):
        tw.Segment(_with(freeze(1.0)), _with(freeze(2.0)))


def test_weights_need_one_dtype():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(
        tw.ThalwegError, match=r"'0\.weight' is torch\.float32 on cpu and '1\.weight' is torch\.float64"
    ):
        tw.Weights.of(module)
    module[1].requires_grad_(False)
    assert tw.Weights.of(module).layout.size == 6


def test_weights_need_a_trainable_parameter():
    with pytest.raises(tw.ThalwegError, match="there is nothing to train"):
        tw.Weights.of(nn.Linear(2, 2).requires_grad_(False))


def test_weights_of_refuses_an_uninitialized_lazy_module():
    with pytest.raises(tw.ThalwegError, match="has no shape yet"):
        tw.Weights.of(nn.LazyLinear(2))


def test_weights_load_distinguishes_files_of_training_scripts(tmp_path):
    module = torch.nn.Linear(2, 1)
    torch.save(module.state_dict(), tmp_path / "net.pt")
    save_file(module.state_dict(), tmp_path / "net.safetensors")
    for name in ("net.pt", "net.safetensors"):
        with pytest.raises(tw.ThalwegError, match=rf"{name} must be a weights file, but .*give module="):
            tw.Weights.load(tmp_path / name)
    with pytest.raises(tw.ThalwegError, match="give the one under 'model'"):
        tw.Weights.from_state({"epoch": torch.ones(1), "model": module.state_dict()}, module)


def test_weights_are_read_only():
    weights = tw.Weights.of(ZOO["conv_bn"].module(1))
    given = {"by": "hand"}
    noted = replace(weights, made=given)
    given["by"] = "somebody else"
    assert noted.made == {"by": "hand"}
    for name in ("buffers", "frozen", "made", "kept"):
        with pytest.raises(TypeError, match="does not support item assignment"):
            getattr(weights, name)["x"] = 1
        with pytest.raises(FrozenInstanceError):
            setattr(weights, name, {})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda weights: pickle.loads(pickle.dumps(weights))])
def test_weights_can_be_copied_and_pickled(copied):
    weights = replace(tw.Weights.of(ZOO["conv_bn"].module(1)), made={"by": "hand"})
    again = copied(weights)
    assert again.digest() == weights.digest()
    assert again.made == weights.made
    assert again.vector.data_ptr() != weights.vector.data_ptr()


def test_saving_weights_says_that_kept_epochs_are_left_out(tmp_path):
    case = ZOO["mlp"]
    trained = tw.fit(case.module(1), case.task, case.batches(), epochs=3, lr=0.1, keep=[1, 3], run=tmp_path / "run")
    with pytest.warns(UserWarning, match=r"holds the weights alone, without the kept epochs 1, 3: fit with run="):
        trained.save(tmp_path / "weights.safetensors")
    assert not tw.Weights.load(tmp_path / "weights.safetensors").kept
    tw.Ensemble(case.module(1), [trained]).save(tmp_path / "ensemble")
    replace(trained, kept={}).save(tmp_path / "weights.safetensors")


def test_weights_from_state_says_which_prefix_to_remove():
    module = nn.Sequential(nn.Linear(2, 2))
    state = nn.DataParallel(module).state_dict()
    with pytest.raises(tw.ThalwegError, match=r"where it is 'module\.0\.weight': remove 'module\.' from the names"):
        tw.Weights.from_state(state, module)
    with pytest.raises(tw.ThalwegError, match=r"'0\.weight' is in the network but not in the state dict$"):
        tw.Weights.from_state({"0.bias": state["module.0.bias"]}, module)


def test_weights_from_a_state_dict_of_another_network_is_advised_no_prefix():
    with pytest.raises(tw.ThalwegError, match=r"'weight' is in the network but not in the state dict$"):
        tw.Weights.from_state(nn.Sequential(nn.Linear(2, 3, bias=False)).state_dict(), nn.Linear(2, 3))


def test_weights_of_two_dtypes_say_what_to_do():
    one, two = (tw.Weights.of(nn.Linear(2, 2, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    message = r"'weight' is torch\.float32 in start and torch\.float64 in end: convert one with module\.to\(\.\.\.\)"
    with pytest.raises(tw.ThalwegError, match=message):
        tw.Segment(one, two)
