"""Symmetries: found in every kind of network, proven, and never wrong."""

import copy
import re
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
import torch
from align_cases import vectors
from align_zoo import ALIGNABLE, Of, found, random_permutation
from torch import nn
from torch.nn import functional as F
from zoo import bits, same_bits

import thalweg as tw
from thalweg.alignment import network_copy
from thalweg.alignment.axes import Atom, Axes, find, product, total, unify
from thalweg.alignment.groups import Group
from thalweg.alignment.network_copy import NetworkCopy
from thalweg.alignment.operations import RULES
from thalweg.alignment.outputs import CLOSE
from thalweg.alignment.permutation import renumber, spread
from thalweg.alignment.tracing import Tracing
from thalweg.alignment.trial import Trial, _order

pytestmark = pytest.mark.filterwarnings("ignore:renumbering .* of groups= changes")

TASK = tw.classification()


def scrambled(module, seed=0):
    """In float64 and away from the values of initialisation, which hide what is not renumbered."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(0.5 + torch.rand(tensor.shape, generator=g)).add_(torch.rand(tensor.shape, generator=g) / 9)
    return module.double().eval()


def answer(case, module):
    batch = tuple(t.double() if t.is_floating_point() else t for t in case.batch())
    with torch.no_grad():
        return case.task.predict(module, batch)[0]


def trial_of(module, task, batch):
    network = NetworkCopy(module, task, batch)
    return Trial(network, Tracing(network).proposed)


@pytest.mark.parametrize("name", ALIGNABLE)
def test_symmetries_groups_and_share_of_each_kind(name):
    symmetries, case = found(name), ALIGNABLE[name]
    assert not symmetries.dropped, str(symmetries)
    assert len(symmetries.groups) == case.groups, str(symmetries)
    assert case.share <= symmetries.share < case.share + 0.11


@pytest.mark.parametrize("name", [name for name in ALIGNABLE if name != "Llama"])  # it computes in float32 inside
def test_symmetries_renumbered_network_is_the_same_function(name):
    case, permutation = ALIGNABLE[name], random_permutation(found(name))
    module = scrambled(case.module(1))
    before, weights = answer(case, module), tw.Weights.of(module)
    renumbered = tw.Permutation(permutation.orders, permutation.axes, permutation.within, weights.layout).apply(weights)
    assert renumbered.distance(weights) > 0.1
    renumbered.load_into(module)
    torch.testing.assert_close(answer(case, module), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ALIGNABLE)
def test_symmetries_catch_a_tensor_left_out_of_its_group(name):
    case = ALIGNABLE[name]
    trial, checked = trial_of(case.module(1), case.task, case.batch()), 0
    proposed = trial.proposed
    for group in found(name).groups.values():
        members = sorted({tensor for tensor, _ in group.axes})
        for tensor in [t for t in members if len(members) > 1 and matters(trial, t)]:
            left_out = tuple(("fixed", term[1]) for term in proposed.axes[tensor])
            trial.proposed = replace(proposed, axes={**proposed.axes, tensor: left_out})
            assert trial.error([group]) > CLOSE, (group.name, tensor)
            checked += 1
        trial.proposed = proposed
    assert checked


def matters(trial, tensor):
    """Whether the outputs depend on the order of a tensor; a bias before an instance norm changes nothing."""
    value = trial.network.tensors[tensor]
    with torch.no_grad():
        value.copy_(value.flatten().flip(0).view(value.shape))
        outputs = zip(trial.expected, trial.network.outputs(), strict=True)
        value.copy_(trial.given[tensor])
    return any(not torch.allclose(one, two, rtol=1e-6, atol=0) for one, two in outputs)


def test_symmetries_unknown_operation_pins_what_it_touches():
    symmetries = found("cumsum")
    assert [group.axes for group in symmetries.groups.values()] == [
        (("two.weight", 0), ("two.bias", 0), ("three.weight", 1))
    ]
    assert symmetries.pinned["one.weight[0]"] == "'cumsum' is not known to keep units apart"
    assert "pinned: one.weight[0] and 2 more: 'cumsum' is not known to keep units apart" in str(symmetries)


@pytest.mark.parametrize("rule", [lambda call: {}["an argument"], lambda call: Axes(call.tensors[0][1:])])
def test_symmetries_pin_arguments_that_a_rule_is_not_for(rule, monkeypatch):
    """It fails, or returns axes of another shape."""
    monkeypatch.setitem(RULES, "tanh", rule)
    case = ALIGNABLE["MLP"]
    symmetries = tw.symmetries(case.module(1), TASK, case.batch())
    assert list(symmetries.groups) == ["0.weight[0]"]
    assert symmetries.pinned["2.weight[0]"] == "it is taken apart in ways that do not fit together"


def test_symmetries_rotary_positions_pin_queries_and_keys():
    symmetries = found("Llama")
    assert {(group.size, len(group.axes)) for group in symmetries.groups.values()} == {
        (24, 11), (2, 4), (3, 2), (4, 2), (32, 3)
    }  # fmt: skip


def test_symmetries_units_inside_pinned_ones_have_orders_of_their_own():
    """Heads that have constants, experts that are chosen by index."""
    for name in ("ALiBi", "packed heads, experts by top-k"):
        symmetries = found(name)
        (outer,) = {outer for outer in symmetries.within.values() if outer not in symmetries.groups}
        assert outer in ("pinned query.weight[0]", "pinned up[0]")
        assert f"in each of {outer}" in str(symmetries)


def test_symmetries_leave_the_module_as_it_was():
    module = ALIGNABLE["batch norm"].module(1).train()
    before, state = bits(module), torch.get_rng_state()
    tw.symmetries(module, TASK, ALIGNABLE["batch norm"].batch())
    assert same_bits(before, bits(module))
    assert torch.equal(state, torch.get_rng_state())


def bound_to_the_original(part):
    part.forward = torch.compile(part.forward, backend="eager")


def bound_in_a_lambda(part):
    part.forward = lambda x, own=part.forward: own(x)


def bound_in_training(part):
    part.forward = lambda x: nn.functional.linear(x, part.weight if part.training else torch.ones(6, 4))


@pytest.mark.parametrize("bind", [bound_to_the_original, bound_in_a_lambda, bound_in_training])
def test_symmetries_refuse_a_network_bound_to_the_original_and_keep_its_gradients(bind):
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    bind(module[0])
    weights, batch = tw.Weights.of(module), (torch.randn(5, 4), torch.zeros(5).long())
    for call in (
        lambda: tw.symmetries(module, tw.classification(), batch),
        lambda: tw.align(module, weights, weights, tw.classification(), [batch]),
        lambda: tw.symmetries(module, tw.classification(), batch, groups={"hidden": {"0.weight": 0, "2.weight": 1}}),
    ):
        with pytest.raises(tw.ThalwegError, match="that was given takes part in the pass of its private copy"):
            call()
    assert all(parameter.grad is None for parameter in module.parameters())


def test_symmetries_refuse_a_network_that_draws_random_numbers():
    noisy = Of(lambda net, x: net.two(net.one(x) + torch.randn(8)), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    with pytest.raises(tw.ThalwegError, match=r"in eval mode .* draws random numbers or .*: turn that off"):
        tw.symmetries(noisy, TASK, ALIGNABLE["MLP"].batch())


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (lambda x: x * torch.arange(8), "it meets a constant, which has an order"),
        (lambda x: x[:, torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])], "its units are chosen by index"),
        (lambda x: F.pad(x[:, 1:] - x[:, :-1], (0, 1)), "its units are chosen by index"),
        (lambda x: F.local_response_norm(x[..., None], 3)[..., 0], "'avg_pool2d' mixes neighbours along it"),
    ],
)
def test_symmetries_reasons_of_pinned_axes_are_true(between, message):
    net = Of(lambda net, x: net.two(between(net.one(x))), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert (dict(symmetries.dropped), symmetries.pinned["one.weight[0]"]) == ({}, message)


def test_symmetries_name_what_is_not_trained():
    net = Of(lambda net, x: net.two(net.one(x) * net.mask), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    net.register_buffer("mask", torch.arange(8.0))
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert symmetries.pinned["one.bias[0]"] == "'mask' is not trained and keeps its order"


@pytest.mark.parametrize(
    ("mask", "persistent", "groups"),
    [(torch.ones(8), False, 1), (torch.ones(8), True, 0), (torch.arange(8.0), False, 0)],
)
def test_symmetries_constant_of_equal_values_pins_nothing(mask, persistent, groups):
    """As the bias of keys that is always zero; a buffer that is saved may change in training."""
    net = Of(lambda net, x: net.two(net.one(x) * net.mask), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    net.register_buffer("mask", mask, persistent=persistent)
    assert len(tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch()).groups) == groups


def masked(net, x):
    return net.two(F.conv2d(x, net.one.weight * net.mask, net.one.bias).relu()).mean((2, 3))


def masked_in_place(net, x):
    net.one.weight.data *= net.mask
    return net.two(net.one(x).relu()).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.float16, torch.uint8])
def test_symmetries_take_constants_of_every_dtype(dtype):
    def forward(net, x):
        return net.two(F.relu(net.one(x))) + net.table.real.sum()

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    net.register_buffer("table", torch.arange(12).view(4, 3).to(dtype))
    assert [*tw.symmetries(net, TASK, vectors()).groups] == ["one.weight[0]"]


@pytest.mark.parametrize("hidden", [15, 17])
def test_symmetries_units_of_an_autoregressive_network_move_among_those_with_the_same_mask(hidden):
    def forward(net, x):
        x = torch.tanh(F.linear(x, net.first * net.one.weight, net.one.bias))
        x = torch.tanh(F.linear(x, net.second * net.two.weight, net.two.bias))
        return F.linear(x, net.third * net.three.weight, net.three.bias)

    net = Of(forward, one=nn.Linear(6, hidden), two=nn.Linear(hidden, hidden), three=nn.Linear(hidden, 6))
    seen, places = torch.arange(hidden) % 5, torch.arange(6)
    net.register_buffer("first", seen[:, None] >= places)
    net.register_buffer("second", seen[:, None] >= seen)
    net.register_buffer("third", (places[:, None] > seen).float())
    batch, a = (vectors()[0], vectors()[0]), tw.Weights.of(net)
    symmetries = tw.symmetries(net, tw.regression(), batch)
    assert {(n, g.size, g.within) for n, g in symmetries.groups.items()} == {
        ("one.weight[0]", 3, "pinned one.weight[0]"), ("two.weight[0]", 3, "pinned two.weight[0]")
    }  # fmt: skip
    b = random_permutation(symmetries).apply(a)
    assert a.distance(b) > 1
    assert torch.equal(tw.align(net, a, b, tw.regression(), [batch]).vector, a.vector)
    x = vectors()[0].double()
    one, two = (weights.load_into(net) or net.double()(x) for weights in (a, b))
    assert torch.allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize("kind", [product, total])
def test_axes_of_the_same_parts_become_one(kind):
    parts = Atom(2), Atom(3)
    one, two = kind(parts), kind(parts)
    unify(one, two)
    assert find(one) is find(two)


def test_symmetries_come_to_an_end_where_units_are_chosen_twice():
    def forward(net, x):
        h = torch.tanh(F.linear(x, net.w))
        h = h * net.m + h.flip(0) * net.m.sin()
        h = (h.unsqueeze(-1) * torch.stack(net.v.unbind(1), -1)).flatten(-2)
        h = torch.cat([h, h[..., :18].cos()], -1) * net.s
        one, two, three = h.unflatten(-1, (14, 3)).unbind(-1)
        first, second = (one + two.cos() + 3 * three).chunk(2, -1)
        more = torch.stack([first, second.sin()], -2)[..., :5].reshape(-1, 2, 5).narrow(-1, 2, 3)
        four = F.conv1d(h[..., None], net.c, groups=2)[..., 0].narrow(-1, 1, 3)
        return F.linear(four, net.p) + F.linear(more.flatten(1), net.o)

    shapes = {"w": (8, 6), "m": (8,), "v": (8, 3), "s": (42,), "c": (4, 21, 1), "p": (4, 3), "o": (4, 6)}
    net = Of(forward, **{name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})
    assert not tw.symmetries(net, tw.regression(), (torch.randn(4, 6), torch.randn(4, 4))).dropped


@pytest.mark.parametrize("persistent", [True, False])
def test_symmetries_keep_the_order_of_a_sparse_buffer(persistent):
    def forward(net, x):
        return net.two(torch.einsum("ij,bj->bi", net.links.to_dense().to(x), net.one(x)))

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    net.register_buffer("links", torch.eye(8).to_sparse(), persistent=persistent)
    assert not tw.symmetries(net, tw.regression(), (vectors()[0], vectors()[0])).groups


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("mask", [torch.arange(8.0).view(1, 8), torch.arange(32.0).view(4, 8)[:1]])
def test_symmetries_take_a_mask_of_one_row_however_it_is_laid_out(mask, persistent):
    for laid_out in (mask, mask.t().contiguous().t(), mask.t().as_strided((8, 1), (1, 8)).t()):
        net = Of(lambda net, x: net.two(net.one(x) * net.mask), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
        net.register_buffer("mask", laid_out, persistent=persistent)
        assert not tw.symmetries(net, tw.regression(), (vectors()[0], vectors()[0])).groups


def test_symmetries_look_at_a_long_mask_only_once():
    net = Of(lambda net, x: net.two(net.one(x)) + net.mask.mean(), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    net.register_buffer("mask", torch.ones(300_000), persistent=False)
    net.mask[-1] = 0
    start = perf_counter()
    assert len(tw.symmetries(net, tw.regression(), (vectors()[0], vectors()[0])).groups) == 1
    assert perf_counter() - start < 20  # where steps were tried one by one, a minute and more


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 16), (2, 0, 3)])
@pytest.mark.parametrize("by", ["weights", "activations"])
def test_symmetries_take_a_saved_buffer_without_entries(shape, by):
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    net.register_buffer("cache", torch.empty(shape))
    batch, a = vectors(), tw.Weights.of(net)
    symmetries = tw.symmetries(net, TASK, batch)
    assert [*symmetries.groups] == ["0.weight[0]"]
    b = random_permutation(symmetries).apply(a)
    assert torch.equal(tw.align(net, a, b, TASK, [batch], by=by).vector, a.vector)


@pytest.mark.parametrize("forward", [masked, masked_in_place])
def test_symmetries_mask_of_positions_pins_no_channels(forward):
    """As in PixelCNN. Its order goes with that of the channels, should it change later."""
    net, (x, y) = Of(forward, one=nn.Conv2d(3, 8, 3), two=nn.Conv2d(8, 4, 1)), ALIGNABLE["batch norm"].batch()
    net.register_buffer("mask", torch.ones(8, 3, 3, 3).tril())
    symmetries = tw.symmetries(net, TASK, (x, y))
    assert [group.axes for group in symmetries.groups.values()] == [
        (("one.weight", 0), ("one.bias", 0), ("two.weight", 1), ("mask", 0))
    ]
    assert symmetries.pinned["one.weight[2]"] == "'mask' is not trained and keeps its order"
    net.mask.copy_(torch.rand(8, 3, 3, 3))
    other = copy.deepcopy(net)
    random_permutation(symmetries).apply(tw.Weights.of(net)).load_into(other)
    assert not torch.equal(other.mask, net.mask)
    assert torch.allclose(other(x), net(x), atol=1e-6)


def test_symmetries_unused_units_keep_their_order():
    """A wider network may use them, together."""

    def forward(net, x):
        return net.two(F.linear(x, net.one.weight[:5], net.one.bias[:5]).relu())

    symmetries = tw.symmetries(Of(forward, one=nn.Linear(6, 8), two=nn.Linear(5, 4)), TASK, ALIGNABLE["MLP"].batch())
    assert symmetries.axes["one.bias"] == (("sum", 8, ("group", 5, "one.weight[0]"), ("fixed", 3)),)


def halves(net, x):
    return net.three(net.one(x).chunk(2, 1)[0].relu())


def joined(net, x):
    return net.three(torch.cat([net.two(x), net.one(x)], 1)[:, :4])


def one_way(net, x):
    return net.three(net.both(x[:, None])[1][-2])


@pytest.mark.parametrize(
    ("forward", "groups"),
    [
        (halves, ["one.weight[0]"]),
        (joined, ["two.weight[0]"]),
        (one_way, ["both.weight_hh_l0[1]", "both.weight_hh_l0_reverse[1]", "both.weight_hh_l1[1]"]),
    ],
)
def test_symmetries_units_that_are_computed_but_not_used_keep_their_order(forward, groups):
    """As of the spread of a latent unit where its mean alone is used; another call may use them together."""
    both = nn.GRU(6, 4, num_layers=2, batch_first=True, bidirectional=True)
    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(6, 4), three=nn.Linear(4, 4), both=both)
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert [group.size for group in symmetries.groups.values()] == [4] * len(groups)
    moved = {place for group in symmetries.groups.values() for place in group.axes}
    assert {(name[:-3], int(name[-2])) for name in groups} <= moved


def test_symmetries_factor_inside_a_product_of_weights_can_be_renumbered():
    """It occurs in no tensor but the two."""
    parts = {"down": nn.Parameter(torch.randn(3, 6)), "up": nn.Parameter(torch.randn(8, 3))}
    net = Of(lambda net, x: net.two(F.linear(x, net.one.weight + net.up @ net.down)), one=nn.Linear(6, 8, bias=False),
             **parts, two=nn.Linear(8, 4))  # fmt: skip
    assert {group.size for group in tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch()).groups.values()} == {3, 8}


def test_symmetries_follow_a_scale_for_several_units():
    scale = nn.Parameter(torch.rand(2))
    net = Of(lambda net, x: net.two(net.one(x) * net.scale.repeat_interleave(4)), one=nn.Linear(6, 8), scale=scale,
             two=nn.Linear(8, 4))  # fmt: skip
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert symmetries.within == {"one.weight[0]": "scale[0]"}


def test_symmetries_refuse_a_shape_that_depends_on_the_data():
    net = Of(lambda net, x: net.two(net.one(x)[x[:, 0] > -9].relu()), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    with pytest.raises(tw.ThalwegError, match=r"the shape of what 'index' returns depends on the values .* by hand"):
        tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())


def scripted(module):
    with pytest.warns(DeprecationWarning, match="script"):
        return torch.jit.script(module)


def partly_scripted():
    return nn.Sequential(nn.Linear(6, 8), scripted(nn.Sequential(nn.ReLU(), nn.Linear(8, 4))))


@pytest.mark.parametrize(
    ("make", "which"), [(lambda: scripted(ALIGNABLE["MLP"].module(1)), "it"), (partly_scripted, "'1'")]
)
def test_symmetries_refuse_a_scripted_network(make, which):
    with pytest.raises(tw.ThalwegError) as refused:
        tw.symmetries(make(), TASK, ALIGNABLE["MLP"].batch())
    assert f"by torch.export ({which} is a torch.jit module, into which it cannot look): give the " in str(
        refused.value
    )
    assert "as it was before torch.jit.script or torch.jit.trace, or give groups= by hand" in str(refused.value)


def test_symmetries_of_a_partly_scripted_network_by_hand():
    """Without a warning that its parameters take no part, since their part cannot be seen."""
    groups = {"hidden": {"0.weight": 0, "0.bias": 0, "1.1.weight": 1}}
    batch, net = ALIGNABLE["MLP"].batch(), partly_scripted()
    a, b = (tw.Weights.of(partly_scripted()) for _ in range(2))
    aligned = tw.align(net, a, b, TASK, [batch], groups=groups)
    assert [*aligned.symmetries.groups] == ["hidden"]
    assert aligned.after < aligned.before


class InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.aux = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.one(x)
        return self.two(hidden) + self.aux(hidden) if self.training else self.two(hidden)


def test_symmetries_of_a_scripted_network_by_hand_are_proven_in_training():
    hidden = {"one.weight": 0, "one.bias": 0, "two.weight": 1}
    net, batch = scripted(InTraining()), ALIGNABLE["MLP"].batch()
    assert [*tw.symmetries(net, TASK, batch, groups={"hidden": hidden}).dropped] == ["hidden"]
    assert [*tw.symmetries(net, TASK, batch, groups={"hidden": {**hidden, "aux.weight": 1}}).groups] == ["hidden"]


@pytest.mark.parametrize(
    ("between", "examples"),
    [(F.relu, 1), (lambda x: x - x.mean(0), 2), (lambda x: x.squeeze().relu().view(-1, 8) * x.shape[0], 2)],
)
def test_symmetries_of_large_networks_are_proven_with_one_example(between, examples, monkeypatch):
    """The graph is always traced with two, since an axis of size one could be anything."""
    monkeypatch.setattr(network_copy, "LARGE", 0)
    net = Of(lambda net, x: net.two(between(net.one(x))), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    network = NetworkCopy(net, TASK, ALIGNABLE["MLP"].batch())
    assert (len(network.batch[0]), len(network.few[0])) == (examples, 2)
    assert len(tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch()).groups) == 1


def test_symmetries_catch_a_missing_statistic_of_inactive_units():
    net, (x, y) = (
        nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 4)),
        ALIGNABLE["MLP"].batch(),
    )
    net[1].bias.data -= 5
    trial = trial_of(net, TASK, (torch.cat([x[:2] * 0, x[2:] * 100]), y))
    (group,) = trial.proposed.groups.values()
    assert trial.error([group]) <= CLOSE
    trial.proposed = replace(trial.proposed, axes={**trial.proposed.axes, "1.running_var": (("fixed", 2),)})
    assert trial.error([group]) > CLOSE


@pytest.mark.parametrize(("small", "examples"), [(network_copy.SMALL, 32), (90, 5), (30, 2)])
def test_symmetries_of_small_networks_are_proven_with_more_examples(small, examples, monkeypatch):
    """Two have 36 entries here."""
    monkeypatch.setattr(network_copy, "SMALL", small)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    assert len(NetworkCopy(net, TASK, (torch.randn(40, 6), torch.zeros(40).long())).batch[0]) == examples


def test_symmetries_pin_parameters_inside_a_branch():
    def forward(net, x):
        branches = [lambda h: net.two(h).relu(), lambda h: net.three(h).tanh()]
        return net.four(torch.cond(x.sum() > 0, *branches, (net.one(x).relu(),)))

    shapes = {"one": (6, 8), "two": (8, 7), "three": (8, 7), "four": (7, 4)}
    net = Of(forward, **{name: nn.Linear(*shape) for name, shape in shapes.items()})
    pinned = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch()).pinned
    assert pinned["two.weight[0]"] == pinned["three.weight[0]"] == "'cond' is not known to keep units apart"


def test_symmetries_take_examples_of_batches_with_other_tensors():
    net = Of(lambda net, x, mask: net.two(net.one(x) @ mask), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    x, y = ALIGNABLE["MLP"].batch()
    network = NetworkCopy(net, TASK, (x, torch.eye(8), y))
    assert [len(tensor) for tensor in network.few] == [2, 8, 2]
    assert [len(tensor) for tensor in network.batch] == [5, 8, 5]


def test_symmetries_refuse_no_batch():
    with pytest.raises(tw.ThalwegError, match=r"a batch must be \(inputs, \.\.\., targets\) or a dict"):
        tw.symmetries(ALIGNABLE["MLP"].module(1), TASK, None)


def test_symmetries_refuse_a_batch_that_does_not_fit():
    with pytest.raises(tw.ThalwegError, match=r"must take the batch.* mat1 and mat2 .*: check the batch and the task"):
        tw.symmetries(ALIGNABLE["MLP"].module(1), TASK, (torch.randn(5, 7), torch.zeros(5)))


def test_symmetries_name_the_way_out_where_a_layer_does_not_compute_in_float64():
    def forward(net, x):
        if net.one.weight.dtype == torch.float64:
            raise RuntimeError("Expected mat_a to be Float32")
        return net.two(F.relu(net.one(x)))

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    with pytest.raises(
        tw.ThalwegError, match=r"mat_a.*it works in the network's own precision.*choose an implementation"
    ):
        tw.symmetries(net, TASK, vectors())


def test_symmetries_advise_one_batch_where_a_list_of_them_is_given():
    batches = [(torch.randn(5, 6), torch.zeros(5).long()) for _ in range(3)]
    with pytest.raises(tw.ThalwegError, match="if this is a list of batches, give one of them"):
        tw.symmetries(ALIGNABLE["MLP"].module(1), TASK, batches)


class Auxiliary(nn.Module):
    """With a second head that takes part in training alone."""

    def __init__(self, noise=False):
        super().__init__()
        self.body, self.head, self.noise = nn.Linear(6, 8), nn.Linear(8, 4), noise
        self.second = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 4))

    def forward(self, x):
        hidden = self.body(x).tanh()
        if not self.training:
            return self.head(hidden)
        return self.head(hidden), self.second(hidden + torch.randn(len(x), 1) if self.noise else hidden)


@pytest.mark.parametrize("noise", [False, True])
def test_symmetries_training_only_parts_follow_the_others(noise):
    net, (x, y) = Auxiliary(noise), ALIGNABLE["MLP"].batch()
    symmetries = tw.symmetries(net, TASK, (x, y))
    assert symmetries.groups["body.weight[0]"].axes[-1] == ("second.0.weight", 1)
    assert symmetries.groups["second.0.weight[0]"].size == 5
    assert symmetries.pinned["second.3.weight[0]"] == "it is an output"
    net.second[2].eval()
    torch.manual_seed(0)
    before = net(x)
    random_permutation(symmetries).apply(tw.Weights.of(net)).load_into(net)
    torch.manual_seed(0)
    for one, two in zip(net(x), before, strict=True):
        torch.testing.assert_close(one, two)


def test_symmetries_units_joined_in_training_alone_share_an_order():
    """The mean and the spread of a latent unit, of which only the mean is used in eval mode."""

    def forward(net, x):
        mean, spread = net.one(x).chunk(2, dim=1)
        return net.two(mean + spread.exp() * torch.randn_like(mean) if net.training else mean)

    symmetries = tw.symmetries(Of(forward, one=nn.Linear(6, 10), two=nn.Linear(5, 4)), TASK, ALIGNABLE["MLP"].batch())
    assert symmetries.axes["one.bias"] == (("sum", 10, *(("group", 5, "one.weight[0]"),) * 2),)


def test_symmetries_training_only_parts_are_proven(monkeypatch):
    """With a rule that is wrong for an operation in the second head."""
    net = Auxiliary()
    net.second[1] = Of(lambda _, x: x.cumsum(1))
    monkeypatch.setitem(RULES, "cumsum", RULES["dropout"])
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert [*symmetries.dropped] == ["second.0.weight[0]"]


def test_symmetries_pin_unused_parameters():
    net = Of(lambda net, x: net.two(net.one(x).relu()), one=nn.Linear(6, 8), two=nn.Linear(8, 4), idle=nn.Linear(8, 3))
    symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert len(symmetries.groups) == 1
    assert symmetries.pinned["idle.weight[1]"] == "it is not used on this batch"


@pytest.mark.parametrize("what", ["NaN in the batch", "no examples", "NaN in the network"])
def test_symmetries_are_not_proven_without_finite_outputs(what):
    """Outputs that are all NaN would be equal whatever is renumbered."""
    net, (x, y) = ALIGNABLE["MLP"].module(1), ALIGNABLE["MLP"].batch()
    batch = {"NaN in the batch": (x / 0 * 0, y), "no examples": (x[:0], y[:0]), "NaN in the network": (x, y)}[what]
    if what == "NaN in the network":
        net[0].weight.data /= 0
    for groups in (None, {"wrong": {"0.weight": 0}}):
        with pytest.raises(tw.ThalwegError, match="for this batch none is a finite number: give a batch with examples"):
            tw.symmetries(net, TASK, batch, groups=groups)


def test_symmetries_are_not_proven_by_units_that_are_never_active():
    net, batch = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), ALIGNABLE["MLP"].batch()
    net[0].bias.data -= 100
    with pytest.raises(tw.ThalwegError, match="do not depend on the order of 'wrong': give a batch on which"):
        tw.symmetries(net, TASK, batch, groups={"wrong": {"0.weight": 0}})
    assert len(tw.symmetries(net, TASK, batch).groups) == 1  # of its graph
    alone = nn.Sequential(nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 4))  # which has one order only
    assert [*tw.symmetries(alone, TASK, batch, groups={"one": {"0.weight": 0, "2.weight": 1}}).groups] == ["one"]


def branching():
    """Its graph depends on its input."""
    return Of(
        lambda net, x: net.two(net.one(x).relu() if bool(x.sum() > 99) else net.one(x).tanh()),
        one=nn.Linear(6, 8), two=nn.Linear(8, 4),
    )  # fmt: skip


HAND = {"hidden": {"one.weight": 0, "one.bias": 0, "two.weight": 1}}


def test_symmetries_groups_by_hand_where_tracing_fails():
    batch = ALIGNABLE["MLP"].batch()
    with pytest.raises(tw.ThalwegError, match=r"cannot be traced .*depends on values of tensors.* by hand, such as"):
        tw.symmetries(branching(), TASK, batch)
    symmetries = tw.symmetries(branching(), TASK, batch, groups=HAND)
    assert symmetries.groups["hidden"].axes == (("one.weight", 0), ("one.bias", 0), ("two.weight", 1))
    assert not symmetries.dropped


@pytest.mark.parametrize("left", HAND["hidden"])
def test_symmetries_groups_by_hand_are_proven(left):
    rest = {"hidden": {name: axis for name, axis in HAND["hidden"].items() if name != left}}
    with pytest.warns(
        UserWarning, match="^renumbering 'hidden' of groups= changes the outputs .* was left out: a tensor may"
    ):
        symmetries = tw.symmetries(branching(), TASK, ALIGNABLE["MLP"].batch(), groups=rest)
    assert not symmetries.groups
    assert symmetries.dropped["hidden"] > 1e-3
    assert "renumbering 'hidden' changed the outputs or gradients, by" in str(symmetries)


@pytest.mark.parametrize("left", [*HAND["hidden"], "three.weight", None])
def test_symmetries_groups_by_hand_tell_of_weights_that_a_batch_does_not_show(left):
    """Those of a layer that is never active."""

    def forward(net, x):
        hidden = net.one(x).relu()
        return net.two(hidden) + net.four((net.three(hidden) - 1e3).relu())

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4), three=nn.Linear(8, 5), four=nn.Linear(5, 4))
    rest = {name: axis for name, axis in {**HAND["hidden"], "three.weight": 1}.items() if name != left}
    unseen = pytest.warns(
        UserWarning, match=r"do not depend on some tensors with axes outside of groups= \('three.weight'\): where"
    )
    with unseen if left == "three.weight" else nullcontext():
        symmetries = tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch(), groups={"hidden": rest})
    assert bool(symmetries.groups) == (left in (None, "three.weight"))


def test_symmetries_groups_by_hand_tell_of_an_axis_that_a_batch_does_not_show():
    """Of a tensor that is in another group along its other axis."""

    def forward(net, x):
        hidden, other = net.one(x).relu(), net.three(x).relu()
        return net.two(hidden) + net.four(other) + ((other @ net.mix @ hidden.T).mean(1, True) - 1e6).relu()

    net = Of(
        forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4), three=nn.Linear(6, 7), four=nn.Linear(7, 4),
        mix=nn.Parameter(torch.randn(7, 8)),
    )  # fmt: skip
    other = {"three.weight": 0, "three.bias": 0, "four.weight": 1, "mix": 0}
    with pytest.warns(UserWarning, match=r"with axes outside of groups= \('mix'\): where"):
        tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch(), groups={**HAND, "other": other})
    tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch(), groups={"hidden": {**HAND["hidden"], "mix": 1}, "other": other})


@pytest.mark.parametrize("left", ["bn.weight", "bn.running_var", None])
@pytest.mark.parametrize("called", [True, False])
def test_symmetries_groups_by_hand_tell_of_statistics_that_a_batch_does_not_show(left, called):
    """Of a batch norm whose output is never active; one that is not called at all is no matter of this batch."""

    def forward(net, x):
        hidden = net.one(x).relu()
        return net.two(hidden) + (net.four((net.bn(hidden) - 1e3).relu()) if called else 0)

    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4), bn=nn.BatchNorm1d(8), four=nn.Linear(8, 4))
    norm = {f"bn.{name}": 0 for name in ("weight", "bias", "running_mean", "running_var")} | {"four.weight": 1}
    groups = {"hidden": HAND["hidden"] | {name: axis for name, axis in norm.items() if name != left}}
    unseen = pytest.warns(UserWarning, match=rf"axes outside of groups= \('{left}'\): where")
    with unseen if left and called else nullcontext():
        tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch(), groups=groups)


def test_symmetries_groups_that_pass_only_alone_are_not_both_used():
    def forward(net, x):
        moved = [part.bias.argmax() > 0 for part in (net.one, net.two)]
        return net.three(net.one(x).relu()) + net.four(net.two(x).relu()) + 1e3 * (moved[0] & moved[1])

    shapes = {"one": (6, 8), "two": (6, 8), "three": (8, 4), "four": (8, 4)}
    net = Of(forward, **{name: nn.Linear(*shape) for name, shape in shapes.items()})
    for part in (net.one, net.two):
        part.bias.data[0] = 100.0  # stays the largest, wherever it is
    hand = {a: {f"{a}.weight": 0, f"{a}.bias": 0, f"{b}.weight": 1} for a, b in (("one", "three"), ("two", "four"))}
    batch = ALIGNABLE["MLP"].batch()
    for name, group in hand.items():
        assert [*tw.symmetries(net, TASK, batch, groups={name: group}).groups] == [name]
    both = tw.symmetries(net, TASK, batch, groups=hand)
    assert [*both.groups] == ["one"]
    assert both.dropped["two"] > 1e-3


def test_symmetries_groups_by_hand_may_hold_several_entries_per_unit():
    case = ALIGNABLE["convolutions, flattened"]
    hand = {"channels": {"3.weight": 0, "3.bias": 0, "6.weight": 1}}
    symmetries = tw.symmetries(case.module(1), TASK, case.batch(), groups=hand)
    assert symmetries.axes["6.weight"][1] == ("product", 32, ("group", 8, "channels"), ("fixed", 4))
    assert not symmetries.dropped


def test_symmetries_groups_by_hand_may_lie_inside_gates():
    """A packed sequence cannot be traced."""

    def forward(net, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return net.head(net.body(packed)[1][0][-1])

    net = Of(forward, body=nn.LSTM(6, 8, batch_first=True), head=nn.Linear(8, 4))
    batch = torch.randn(3, 7, 6), torch.tensor([7, 5, 3]), torch.tensor([0, 1, 2])
    with pytest.raises(tw.ThalwegError, match="cannot be traced"):
        tw.symmetries(net, TASK, batch)
    body = {"body.weight_ih_l0": 0, "body.weight_hh_l0": (0, 1), "body.bias_ih_l0": 0, "body.bias_hh_l0": 0}
    symmetries = tw.symmetries(net, TASK, batch, groups={"state": {**body, "head.weight": 1}})
    assert symmetries.axes["body.bias_ih_l0"] == (("product", 32, ("fixed", 4), ("group", 8, "state")),)
    assert [*tw.symmetries(net, TASK, batch, groups={"state": body}).dropped] == ["state"]


def test_symmetries_failed_trace_prints_no_graph(capfd):
    for net in (branching(), Of(lambda net, x: net.one(x) if net.one(x).sum() > 0 else x, one=nn.Linear(6, 6))):
        with pytest.raises(tw.ThalwegError, match="cannot be traced"):
            tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "groups= must name at least one group; got none: leave it out to have them found"),
        ({"": {"one.weight": 0}}, "groups= must name at least one group; got one without a name: leave it out"),
        ({"hidden": {}}, "'hidden' is {}: correct groups="),
        ({"hidden": None}, "'hidden' is None: correct groups="),
        ({"hidden": "one.weight"}, "'hidden' is 'one.weight': correct groups="),
        (
            {"hidden": {"nothing": 0}},
            "'hidden' has 'nothing', which is neither: correct groups=",
        ),
        ({"hidden": {"one.weight": "0"}}, "'hidden' has 'one.weight': '0', which is not one of its axes: correct"),
        ({"hidden": {"one.weight": True}}, "'hidden' has 'one.weight': True, which is not one of its axes: correct"),
        ({"hidden": {"one.weight": []}}, "'hidden' has 'one.weight': [], which is not one of its axes: correct"),
        ({"hidden": {"one.bias": 1}}, "'hidden' has 'one.bias': 1, which is not one of its axes: correct groups="),
        ({"hidden": {"one.weight": (0, 1)}}, "axis 0 of 'one.weight' in 'hidden' is not: correct groups="),
    ],
)
def test_symmetries_groups_by_hand_must_fit(groups, message):
    with pytest.raises(tw.ThalwegError, match=re.escape(message)):
        tw.symmetries(branching(), TASK, ALIGNABLE["MLP"].batch(), groups=groups)


def test_symmetries_groups_by_hand_take_numpy_axes():
    hand = {"hidden": {name: np.int64(axis) for name, axis in HAND["hidden"].items()}}
    assert [*tw.symmetries(branching(), TASK, ALIGNABLE["MLP"].batch(), groups=hand).groups] == ["hidden"]


def test_symmetries_pin_only_outputs_that_the_task_uses():
    net = Of(
        lambda net, x: {"logits": net.two(h := net.one(x).relu()), "features": h},
        one=nn.Linear(6, 8), two=nn.Linear(8, 4),
    )  # fmt: skip
    assert len(tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch()).groups) == 1
    both = tw.Task(TASK.loss, lambda net, batch: ((out := net(batch[0]))["logits"] + out["features"].sum(), batch[1]))
    assert not tw.symmetries(net, both, ALIGNABLE["MLP"].batch()).groups


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_symmetries_trial_order_moves_something(size):
    """The identity, which is one of two orders of two units, would prove nothing."""
    for name in map(str, range(20)):
        groups = {"outer": Group("outer", 4, ()), name: Group(name, size, ()), "in": Group("in", size, (), "outer")}
        order, rows = (_order(groups[key], groups) for key in (name, "in"))
        assert sorted(order.tolist()) == list(range(size))
        assert order.tolist() != list(range(size))
        assert len({tuple(row) for row in rows.tolist()}) > 1


def test_symmetries_reorder_blocks_of_sums_and_products_in_place():
    """Against indices written by hand: a sum of two units and a product of three units with two entries each."""
    terms = [("sum", 8, ("group", 2, "a"), ("product", 6, ("group", 3, "b"), ("fixed", 2)))]
    values = torch.arange(8)
    renumber(spread(values, terms), {"a": torch.tensor([1, 0]), "b": torch.tensor([2, 0, 1])}, {})
    assert values.tolist() == [1, 0, 6, 7, 2, 3, 4, 5]


def test_symmetries_index_chooses_units_of_another_axis():
    """Two groups that are interleaved."""
    values = torch.arange(6)
    terms = [("product", 6, ("choice", 3, 0, ("group", 3, "a"), ("group", 3, "b")), ("fixed", 2, 0))]
    renumber(spread(values, terms), {"a": torch.tensor([1, 0, 2]), "b": torch.tensor([2, 0, 1])}, {})
    assert values.tolist() == [2, 5, 0, 1, 4, 3]


def test_symmetries_reorder_units_inside_others_by_rows():
    values = torch.arange(6).view(2, 3)
    orders = {"heads": torch.tensor([1, 0]), "inside": torch.tensor([[2, 0, 1], [0, 2, 1]])}
    terms = [("group", 2, "heads"), ("group", 3, "inside")]
    for tensor, axes in ((values, terms), (values.T, terms[::-1])):
        copy = tensor.clone()
        renumber(spread(copy, axes), orders, {"inside": "heads"})
        assert (copy if axes is terms else copy.T).tolist() == [[5, 3, 4], [0, 2, 1]]


@pytest.mark.parametrize("combine", [torch.Tensor.__and__, torch.Tensor.__or__, torch.Tensor.__xor__])
def test_bitwise_operators_keep_units_apart(combine):
    """Also those that torch names with two underscores at either end."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x):
            hidden = self.first(x)
            return self.last(hidden * combine(hidden > 0, hidden < 1))

    net, (x, y) = Gated(), ALIGNABLE["MLP"].batch()
    [group] = tw.symmetries(net, TASK, (x, y)).groups.values()
    assert group.size == 8


def test_symmetries_refuse_a_group_by_hand_without_units():
    one, two = (nn.Parameter(torch.zeros(shape)) for shape in ((6, 0), (0, 4)))
    net = Of(lambda net, x: net.out(x @ net.one @ net.two), one=one, two=two, out=nn.Linear(4, 4))
    groups = {"none": {"one": 1, "two": 0}}
    with pytest.raises(tw.ThalwegError, match=r"axis 1 of 'one' in 'none' is not: correct groups="):
        tw.symmetries(net, TASK, ALIGNABLE["MLP"].batch(), groups=groups)
