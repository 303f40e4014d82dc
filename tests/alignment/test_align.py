"""Alignment: planted orders are found again, what comes out is the same function, and what does not fit is refused."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from align_cases import Of
from align_zoo import ALIGNABLE, found, random_permutation
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.utils.data import DataLoader
from zoo import bits, same_bits

import thalweg as tw
from thalweg.alignment import matching as matchings
from thalweg.weightspace.checkpoint import Checkpoint

TASK = tw.classification()


def noisy(weights, seed=0, share=0.01):
    """With noise of one percent of the spread of each tensor."""
    g = torch.Generator().manual_seed(seed)
    parts = [
        tensor + share * (tensor.std() if tensor.numel() > 1 else 0) * torch.randn(tensor.shape, generator=g)
        for tensor in weights.layout.split(weights.vector).values()
    ]
    return tw.Weights(weights.layout, torch.cat([part.flatten() for part in parts]), weights.buffers)


def many(case, count=3):
    """Batches of sixteen random examples like those of a case."""
    g = torch.Generator().manual_seed(0)

    def like(t):
        shape = (16, *t.shape[1:])
        return torch.randn(shape, generator=g) if t.is_floating_point() else torch.randint(4, shape, generator=g)

    return [tuple(map(like, case.batch())) for _ in range(count)]


@pytest.mark.parametrize("name", ALIGNABLE)
def test_align_recovers_a_planted_order_by_weights(name):
    case = ALIGNABLE[name]
    module = case.module(1)
    a = tw.Weights.of(module)
    near = noisy(a)
    b = random_permutation(found(name)).apply(near)
    aligned = tw.align(module, a, b, case.task, [case.batch()])
    assert torch.equal(aligned.vector, near.vector)
    assert aligned.after == pytest.approx(a.distance(near))
    assert aligned.after < 0.1 * aligned.before


@pytest.mark.parametrize(
    "name",
    ["MLP", "convolutions, flattened", "batch norm", "DenseNet", "ViT", "Llama", "cross attention", "LSTM", "U-Net",
     "ShuffleNet", "stacked layers, vmap", "packed heads, experts by top-k"],
)  # fmt: skip
def test_align_recovers_a_planted_order_by_activations(name):
    case = ALIGNABLE[name]
    module = case.module(1)
    a = tw.Weights.of(module)
    b = random_permutation(found(name)).apply(a)
    aligned = tw.align(module, a, b, case.task, many(case), by="activations")
    assert torch.equal(aligned.vector, a.vector)


def first_states_in_float32():
    """It makes some tensors, holds one that is no buffer, and writes into one that stays in float32."""

    def forward(net, x):
        first = torch.zeros(1, len(x), 8)
        found = net.body(x, (first, torch.zeros_like(first)))[0][:, -1]
        copied = torch.FloatTensor(len(x), 8)
        copied[:, :] = found
        return net.head(found + copied) @ net.table

    net = Of(forward, body=nn.LSTM(6, 8, batch_first=True), head=nn.Linear(8, 4))
    net.table = torch.rand(4, 3)
    return net


@pytest.mark.parametrize("by", ["weights", "activations"])
def test_align_network_with_own_float32_tensors(by):
    """The proof computes in float64."""
    torch.manual_seed(0)
    net, batches = first_states_in_float32(), many(ALIGNABLE["einsum attention"])
    a = tw.Weights.of(net)
    symmetries = tw.symmetries(net, TASK, batches[0])
    assert [group.size for group in symmetries.groups.values()] == [8]
    aligned = tw.align(net, a, random_permutation(symmetries).apply(a), TASK, batches, by=by)
    assert torch.equal(aligned.vector, a.vector)
    assert torch.get_default_dtype() == torch.float32


def test_align_matches_constant_units_by_weights():
    """Their correlations would be rounding errors divided by each other."""

    def make(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 4))
        with torch.no_grad():
            net[0].weight[::2], net[0].bias[::2] = 0.0, torch.rand(20)
        return net

    a, batches = tw.Weights.of(make(1)), many(ALIGNABLE["MLP"])
    b = random_permutation(tw.symmetries(make(0), TASK, batches[0])).apply(noisy(a))
    assert torch.equal(tw.align(make(0), a, b, TASK, batches, by="activations").vector, noisy(a).vector)


def test_align_refuses_activations_that_are_not_finite():
    a, b = pair()
    (x, y), other = many(ALIGNABLE["MLP"], 2)
    with pytest.raises(tw.ThalwegError, match="only finite activations can be matched, and some are not: look for NaN"):
        tw.align(two_layers(), a, b, TASK, [other, (x / 0, y)], by="activations")


def two_layers():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))


def pair():
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        module = two_layers()
        for _ in range(3):
            module(torch.randn(20, 6))
        made.append(tw.Weights.of(module))
    return made


def test_align_finds_the_best_of_all_orders():
    """One group of five units: all 120 orders, by hand."""
    from itertools import permutations

    a, b = pair()
    batches = [(torch.randn(3, 6), torch.zeros(3).long())]
    aligned = tw.align(two_layers(), a, b, TASK, batches)
    mine, yours = a.state_dict(), b.state_dict()
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    distances = []
    for order in map(list, permutations(range(5))):
        rows = sum((mine[n] - yours[n][order]).square().sum() for n in names)
        columns = (mine["3.weight"] - yours["3.weight"][:, order]).square().sum()
        distances.append(float(rows + columns + (mine["3.bias"] - yours["3.bias"]).square().sum()) ** 0.5)
    assert aligned.after == pytest.approx(min(distances))
    assert aligned.before == pytest.approx(distances[0])
    order = aligned.permutation.orders["0.weight[0]"]
    for name in ("1.running_mean", "1.running_var", "0.bias"):
        assert torch.equal(aligned.state_dict()[name], yours[name][order])
    assert torch.equal(aligned.state_dict()["3.weight"], yours["3.weight"][:, order])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("MLP", 2),
        ("convolutions, flattened", 3),
        ("batch norm", 2),
        ("DenseNet", 4),
        ("ViT", 2),
        ("LSTM", 0),
        ("U-Net", 4),
    ],
)
def test_align_gains_follow_the_units_that_move(name, plain, monkeypatch):
    case, seen, run = ALIGNABLE[name], [], matchings.Matching.run
    monkeypatch.setattr(
        matchings.Matching, "run", lambda matching, seed: (seen.append(matching), run(matching, seed))[1]
    )
    a, b = (tw.Weights.of(case.module(seed)) for seed in (1, 2))
    tw.align(case.module(1), a, b, case.task, [case.batch()])
    (matching,) = seen
    assert len(matching.gains) == plain  # groups on one dimension of each tensor
    for group, gains in matching.gains.items():
        torch.testing.assert_close(gains, matchings._gains(matching.pairs[group], group), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("diagonal", [0.0, 1.0, 3.0, 100.0])
def test_assignment_from_the_present_order_is_optimal(size, diagonal):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        gains = rng.normal(size=(size, size)) + diagonal * np.eye(size)
        if seed % 2:
            gains = gains.round()  # with ties
        order = matchings._assigned(torch.from_numpy(gains)).numpy()
        rows, best = linear_sum_assignment(gains, maximize=True)
        assert sorted(order) == list(range(size))
        assert gains[rows, order].sum() == pytest.approx(gains[rows, best].sum(), rel=1e-12)
        if gains.trace() == gains[rows, best].sum() and diagonal == 100.0:
            assert (order == rows).all()


def test_align_leaves_batches_and_matches_bfloat16():
    """A shuffling loader draws from the global generator whenever it is started."""
    case = ALIGNABLE["MLP"]
    a, b = (tw.Weights.of(case.module(seed).bfloat16()) for seed in (1, 2))
    loader = DataLoader(list(zip(*case.batch(), strict=True)), batch_size=2, shuffle=True)
    before = torch.get_rng_state()
    aligned = tw.align(case.module(0).bfloat16(), a, b, TASK, loader)
    assert torch.equal(before, torch.get_rng_state())
    assert aligned.after < aligned.before
    assert aligned.vector.dtype == torch.bfloat16


def test_align_matches_several_networks_to_one():
    a, b = pair()
    batches = [(torch.randn(3, 6), torch.zeros(3).long())]
    alone = tw.align(two_layers(), a, b, TASK, batches)
    several = tw.align(two_layers(), a, [b, a], TASK, batches)
    assert [each.after for each in several] == [alone.after, 0.0]
    assert several[1].digest() == a.digest()


def test_permutation_is_saved_applied_and_undone(tmp_path):
    case = ALIGNABLE["ViT"]
    weights, permutation = tw.Weights.of(case.module(1)), random_permutation(found("ViT"))
    permutation.save(tmp_path / "order.safetensors")
    again = tw.Permutation.load(tmp_path / "order.safetensors")
    moved = again.apply(weights)
    assert torch.equal(moved.vector, permutation.apply(weights).vector)
    assert moved.distance(weights) > 1
    assert again.inverse().apply(moved).digest() == weights.digest()
    assert again.inverse().inverse().apply(weights).digest() == moved.digest()


@pytest.mark.parametrize("name", ["ShuffleNet", "packed heads, experts by top-k"])
def test_permutation_of_interleaved_units_or_within_pinned_ones_is_saved(name, tmp_path):
    weights, permutation = tw.Weights.of(ALIGNABLE[name].module(1)), random_permutation(found(name))
    permutation.save(tmp_path / "order.safetensors")
    moved = tw.Permutation.load(tmp_path / "order.safetensors").apply(weights)
    assert torch.equal(moved.vector, permutation.apply(weights).vector)
    assert permutation.inverse().apply(moved).digest() == weights.digest()


def test_permutation_file_with_a_wrong_order_is_refused(tmp_path):
    permutation = random_permutation(found("MLP"))
    for name, wrong in (("twice", torch.zeros(12, dtype=torch.long)), ("short", torch.arange(11))):
        path = tmp_path / f"{name}.safetensors"
        orders = {**permutation.orders, "0.weight[0]": wrong}
        tw.Permutation(orders, permutation.axes, {}, permutation.layout).save(path)
        with pytest.raises(tw.ThalwegError, match=f"{name}.safetensors is not a file that thalweg wrote whole"):
            tw.Permutation.load(path)


def test_align_permutes_the_optimizer_state_of_a_checkpoint():
    a, _ = pair()
    momentum = torch.arange(a.layout.size).float()
    aligned = tw.align(two_layers(), *pair(), TASK, [(torch.randn(3, 6), torch.zeros(3).long())])
    order = aligned.permutation.orders["0.weight[0]"]
    moved = aligned.permutation.apply(Checkpoint(a, {"momentum": momentum, "step": torch.tensor(3.0)}, "SGD", 5))
    before, after = a.layout.split(momentum), a.layout.split(moved.optimizer["momentum"])
    assert torch.equal(after["0.weight"], before["0.weight"][order])
    assert torch.equal(after["3.weight"], before["3.weight"][:, order])
    assert torch.equal(moved.weights.state_dict()["0.bias"], a.state_dict()["0.bias"][order])
    assert (moved.optimizer["step"], moved.epoch) == (3.0, 5)


def test_align_permutes_or_refuses_optimizer_state_of_single_tensors():
    """As of an optimizer for matrices alone, or one that keeps the means of rows."""
    permutation = random_permutation(found("MLP"))
    weights = tw.Weights.of(ALIGNABLE["MLP"].module(1))
    order = permutation.orders["0.weight[0]"]
    assert weights.layout.names[0] == "0.weight"
    state = torch.randn(weights.layout.shapes[0])
    moved = permutation.apply(Checkpoint(weights, {"momentum/0": state, "step/0": torch.tensor(3.0)}, "Muon", 5))
    assert torch.equal(moved.optimizer["momentum/0"], state[order])
    with pytest.raises(tw.ThalwegError, match=r"'row_var/0' of shape \(12, 1\) has not: renumber the weights alone"):
        permutation.apply(Checkpoint(weights, {"row_var/0": state[:, :1]}, "Adafactor", 5))


def test_align_refuses_optimizer_state_that_preconditions_a_square_weight():
    """It has the shape of the weight, and another meaning: rows by rows."""
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    permutation = random_permutation(tw.symmetries(module, TASK, (torch.randn(4, 6), torch.zeros(4).long())))
    weights, rows = tw.Weights.of(module), torch.randn(8, 8)
    assert weights.layout.names[2] == "2.weight"
    state = {"left/2": torch.zeros(8, 8), "mean/0": torch.randn(8, 6), "mean/2": rows, "momentum_buffer/2": rows}
    moved = permutation.apply(Checkpoint(weights, state, "Shampoo", 5))
    assert not torch.equal(moved.optimizer["mean/2"], rows)
    assert torch.equal(moved.optimizer["mean/2"], moved.optimizer["momentum_buffer/2"])
    for left in (rows @ rows.T + 0, rows.triu(), torch.linalg.inv(rows)):
        with pytest.raises(tw.ThalwegError, match=r"'left/2' of shape \(8, 8\) has not, as far as can be seen"):
            permutation.apply(Checkpoint(weights, {"left/2": left}, "Shampoo", 5))


@pytest.mark.parametrize("kept", [torch.zeros(12), [torch.zeros(3, 4)], {"slow": np.zeros(5)}])
def test_align_refuses_tensors_that_an_optimizer_keeps_outside_its_state(kept):
    permutation, weights = random_permutation(found("MLP")), tw.Weights.of(ALIGNABLE["MLP"].module(1))
    alone = {"betas": (0.9, 0.99), "scale": torch.tensor(2.0), "name": "slow"}
    assert permutation.apply(Checkpoint(weights, {}, "Own", 5, alone)).extra == alone
    with pytest.raises(tw.ThalwegError, match=r"'average' of shape .* is not: renumber the weights alone"):
        permutation.apply(Checkpoint(weights, {}, "Own", 5, {**alone, "average": kept}))


def test_align_never_increases_the_distance_and_repeats():
    case = ALIGNABLE["residual, projected shortcut"]
    a, b = (tw.Weights.of(case.module(seed)) for seed in (1, 2))
    one, two = (tw.align(case.module(0), a, b, TASK, [case.batch()], seed=3) for _ in range(2))
    assert one.after < one.before
    assert torch.equal(one.vector, two.vector)
    again = tw.align(case.module(0), a, one, TASK, [case.batch()])
    assert again.after <= one.after
    assert str(one).startswith(f"distance {one.before:.4g} before, {one.after:.4g} after; groups: 4, passes: ")


def test_align_leaves_module_and_weights_as_they_were():
    case = ALIGNABLE["batch norm"]
    module, a, b = case.module(0).train(), *(tw.Weights.of(case.module(seed)) for seed in (1, 2))
    before, digests = bits(module), (a.digest(), b.digest())
    for by in ("weights", "activations"):
        tw.align(module, a, b, TASK, many(case), by=by)
    assert same_bits(before, bits(module))
    assert (a.digest(), b.digest()) == digests


def test_align_by_activations_leaves_out_batches_of_another_shape():
    case = ALIGNABLE["MLP"]
    a, b = (tw.Weights.of(case.module(seed)) for seed in (1, 2))
    batches = many(case)
    short = [(x[:7], y[:7]) for x, y in many(case, 1)]
    one, two = (tw.align(case.module(0), a, b, TASK, data, by="activations") for data in (batches, batches + short))
    assert torch.equal(one.vector, two.vector)


def test_align_lowers_the_barrier_of_a_line():
    """Two networks that learn the sign of a product; the same data, other seeds."""
    torch.manual_seed(0)
    x = 2 * torch.rand(256, 2) - 1
    train = list(zip(x.split(64), (x.prod(dim=1) > 0).long().split(64), strict=True))

    def make(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))

    a, b = (tw.fit(make(seed), TASK, train, epochs=40, lr=0.1, seed=seed) for seed in (1, 2))
    aligned = tw.align(make(0), a, b, TASK, train)
    scans = [tw.scan(make(0), tw.Segment(a, end), TASK, {"train": train}, points=11) for end in (b, aligned)]
    plain, better = (scan.summary()["train"]["loss"]["barrier"] for scan in scans)
    assert aligned.after < 0.8 * aligned.before
    assert better < 0.5 * plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "magic"}, "^by must be 'weights' or 'activations'; got 'magic'$"),
        ({"b": tw.Weights.of(nn.Linear(6, 4))}, "not describe the same network"),
        ({"module": nn.Linear(6, 4)}, "the network and a do not describe the same network"),
        ({"b": []}, "align needs at least 1 network"),
        ({"batches": []}, "the batches are empty"),
        (
            {"groups": {"hidden": {"0.weight": 0}}, "by": "activations"},
            r"only where groups are traced, and these are given by hand: leave groups= out, or use by='weights'$",
        ),
    ],
)
def test_align_refuses_what_cannot_be_aligned(arguments, message):
    a, b = pair()
    given = {"module": two_layers(), "a": a, "b": b, "batches": [(torch.randn(3, 6), torch.zeros(3).long())]}
    with pytest.raises(tw.ThalwegError, match=message):
        tw.align(task=TASK, **{**given, **arguments})


def test_align_refuses_weights_that_are_not_finite():
    a, b = pair()
    broken = replace(b, vector=b.vector / 0)
    with pytest.raises(tw.ThalwegError, match="the weights of b hold NaN or infinity"):
        tw.align(two_layers(), a, broken, TASK, [(torch.randn(3, 6), torch.zeros(3).long())])


def test_permutation_apply_refuses_other_networks_and_modules():
    permutation = random_permutation(found("MLP"))
    with pytest.raises(tw.ThalwegError, match="the permutation and the weights do not describe the same network"):
        permutation.apply(tw.Weights.of(nn.Linear(6, 4)))
    with pytest.raises(tw.ThalwegError, match=r"renumbers Weights or a Checkpoint; got Linear: use Weights.of"):
        permutation.apply(nn.Linear(6, 4))


def test_aligned_weights_are_weights_and_what_is_made_from_them_is_plain(tmp_path):
    a, b = pair()
    aligned = tw.align(two_layers(), a, b, TASK, [(torch.randn(3, 6), torch.zeros(3).long())])
    assert isinstance(aligned, tw.Weights)
    assert str(aligned).startswith(f"distance {aligned.before:.4g} before")
    made = [tw.Bezier(aligned, a).bends[0], tw.average([aligned, a]), aligned.permutation.inverse().apply(aligned)]
    assert [type(point) for point in made] == [tw.Weights] * 3
    assert made[2].digest() == b.digest()
    assert aligned.to("cpu").after == aligned.bare().after == aligned.after
    for twin in (pickle.loads(pickle.dumps(aligned)), copy.deepcopy(aligned)):
        assert (twin.after, twin.digest()) == (aligned.after, aligned.digest())
        assert twin.permutation.inverse().apply(twin).digest() == b.digest()
    aligned.save(tmp_path / "b.safetensors")
    assert tw.Weights.load(tmp_path / "b.safetensors").digest() == aligned.digest()


def test_aligned_weights_keep_no_checkpoints_but_renumber_them():
    a, batches = pair()[0], [(torch.randn(6, 6), torch.zeros(6).long())]
    b = tw.fit(two_layers(), TASK, batches, epochs=2, lr=0.1, keep=[1])
    aligned = tw.align(two_layers(), a, b, TASK, batches)
    assert not aligned.kept
    kept = aligned.permutation.apply(b.kept[1])
    assert aligned.permutation.inverse().apply(kept.weights).digest() == b.kept[1].weights.digest()
    assert "b.kept[epoch]" in tw.align.__doc__
