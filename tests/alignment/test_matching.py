"""Matching of groups inside others, and of the activations before every operation that contracts units."""

from dataclasses import replace

import pytest
import torch
from align_cases import AlignmentCase, Of, images, sequences, tokens, vectors
from align_zoo import ALIGNABLE, random_permutation
from torch import nn

import thalweg as tw

TASK = tw.classification()


def noisy(weights, seed=0, share=0.01):
    """With noise of one percent of the spread of each tensor."""
    g = torch.Generator().manual_seed(seed)
    parts = [
        t + share * t.std() * torch.randn(t.shape, generator=g) for t in weights.layout.split(weights.vector).values()
    ]
    return tw.Weights(weights.layout, torch.cat([part.flatten() for part in parts]), weights.buffers)


def pooled(*layers, width):
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4))


def residual():
    """A group norm before a convolution along a residual stream."""

    def forward(net, x):
        x = net.stem(x)
        return net.head((x + net.conv(nn.functional.silu(net.norm(x)))).mean((2, 3)))

    parts = {"conv": nn.Conv2d(8, 8, 3, padding=1), "norm": nn.GroupNorm(2, 8), "stem": nn.Conv2d(3, 8, 3, padding=1)}
    return Of(forward, **parts, head=nn.Linear(8, 4))


NESTED = {
    "convolution in eight groups": AlignmentCase(
        lambda: pooled(
            nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 1, groups=8), nn.ReLU(), nn.Conv2d(32, 8, 1), width=8
        ),
        images, 0, 0.0,
    ),
    "three grouped convolutions": AlignmentCase(
        lambda: pooled(nn.Conv2d(3, 24, 1), *(nn.Conv2d(24, 24, 1, groups=4) for _ in range(3)), width=24),
        images, 0, 0.0,
    ),
    "maxout of maxout": AlignmentCase(
        lambda: Of(lambda net, x: net.two(net.one(x).view(-1, 6, 4, 3).amax(3).amax(2)), one=nn.Linear(6, 72),
                   two=nn.Linear(6, 4)),
        vectors, 0, 0.0,
    ),
    "RNN, group norm": AlignmentCase(
        lambda: Of(lambda net, x: net.head(net.norm(net.body(x)[0][:, -1])), body=nn.RNN(6, 16, batch_first=True),
                   norm=nn.GroupNorm(4, 16), head=nn.Linear(16, 4)),
        sequences, 0, 0.0,
    ),
    "channel shuffle": ALIGNABLE["channel shuffle"],
    "group norm, residual": AlignmentCase(residual, images, 0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_align_recovers_the_order_of_nested_groups_from_every_seed(name):
    case = NESTED[name]
    symmetries = tw.symmetries(case.module(1), case.task, case.batch())
    for seed in (1, 2, 3, 4, 5, 6, 7, 30):
        a = tw.Weights.of(case.module(seed))
        near = noisy(a, seed)
        b = random_permutation(symmetries, seed).apply(near)
        aligned = tw.align(case.module(0), a, b, case.task, [case.batch()], seed=seed)
        assert torch.equal(aligned.vector, near.vector), seed


def test_align_takes_one_start_where_no_groups_are_nested():
    case = ALIGNABLE["convolutions, flattened"]
    a = tw.Weights.of(case.module(1))
    aligned = tw.align(case.module(1), a, noisy(a), case.task, [case.batch()])
    assert aligned.passes == 2


def contracting(name):
    """A hidden layer before one operation that contracts its units, and a batch."""
    layer = {
        "conv_transpose": nn.ConvTranspose1d(8, 4, 1), "LSTM": nn.LSTM(8, 4, batch_first=True),
        "GRU": nn.GRU(8, 4, batch_first=True), "LSTM cell": nn.LSTMCell(8, 4), "Bilinear": nn.Bilinear(8, 8, 4),
        "tensordot": nn.Linear(8, 4), "baddbmm": nn.Linear(8, 4), "cdist": nn.Linear(8, 4),
        "multi_dot": nn.Linear(8, 4), "inner": nn.Linear(8, 4),
    }[name]  # fmt: skip
    contract = {
        "conv_transpose": lambda net, h: net.two(h[..., None]).mean(2),
        "LSTM": lambda net, h: net.two(h[:, None])[0][:, -1],
        "GRU": lambda net, h: net.two(h[:, None])[0][:, -1],
        "LSTM cell": lambda net, h: net.two(h)[0],
        "Bilinear": lambda net, h: net.two(h, h),
        "tensordot": lambda net, h: torch.tensordot(h, net.two.weight, dims=([1], [1])),
        "baddbmm": lambda net, h: torch.baddbmm(torch.zeros(1, 1, 4), h[None], net.two.weight.T[None])[0],
        "cdist": lambda net, h: torch.cdist(h, net.two.weight),
        "multi_dot": lambda net, h: torch.linalg.multi_dot([h, net.two.weight.T, torch.eye(4)]),
        "inner": lambda net, h: torch.inner(h, net.two.weight),
    }[name]
    return Of(lambda net, x: contract(net, net.one(x).tanh()), one=nn.Linear(6, 8), two=layer)


def under(context):
    def forward(net, x):
        h = net.one(x).relu()
        with context(net):
            h = net.two(h).relu()
            h = net.three(h).relu()
        return net.four(h)

    parts = {"one": nn.Linear(6, 8), "two": nn.Linear(8, 7), "three": nn.Linear(7, 9), "four": nn.Linear(9, 4)}
    return Of(forward, **parts)


CONTEXTS = {
    "no_grad": lambda net: torch.no_grad(),
    "set_grad_enabled": lambda net: torch.set_grad_enabled(net.training),
    "autocast": lambda net: torch.autocast("cpu", torch.bfloat16),
}
SEEN = ["conv_transpose", "LSTM", "GRU", "LSTM cell", "Bilinear", "tensordot", "baddbmm", "cdist", "multi_dot", "inner",
        *CONTEXTS]  # fmt: skip


def two_batches():
    torch.manual_seed(3)
    return [(torch.randn(16, 6), torch.zeros(16).long()) for _ in range(2)]


@pytest.mark.filterwarnings("ignore:parameters that took no part")  # some of these have a bias that is not used
@pytest.mark.parametrize("name", SEEN)
def test_align_by_activations_sees_units_before_every_contraction(name):
    torch.manual_seed(0)
    net = under(CONTEXTS[name]) if name in CONTEXTS else contracting(name)
    a = tw.Weights.of(net)
    symmetries = tw.symmetries(net, TASK, two_batches()[0])
    b = random_permutation(symmetries).apply(a)
    aligned = tw.align(net, a, b, TASK, two_batches(), by="activations")
    hidden = {group for group in symmetries.groups if group.startswith(("one", "two") if name in CONTEXTS else "one")}
    assert hidden
    assert not hidden & {*aligned.unseen}
    assert torch.equal(aligned.vector, a.vector)


def test_align_by_activations_takes_masks_with_infinity():
    """One per head, as torch makes of a mask of padding."""

    def forward(net, x):
        return net.head(net.layer(net.embedding(x), src_key_padding_mask=x == 0).mean(1))

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    net, batch = Of(forward, embedding=nn.Embedding(9, 8), layer=layer, head=nn.Linear(8, 4)), tokens()
    assert (batch[0] == 0).any()
    a = tw.Weights.of(net)
    b = random_permutation(tw.symmetries(net, TASK, batch)).apply(a)
    assert torch.equal(tw.align(net, a, b, TASK, [batch], by="activations").vector, a.vector)


def test_align_by_activations_names_groups_without_any():
    net = Of(lambda net, x: (net.one(x).tanh() * net.scale).sum(1, True) + net.two(x), one=nn.Linear(6, 8),
             scale=nn.Parameter(torch.randn(8)), two=nn.Linear(6, 4))  # fmt: skip
    a = tw.Weights.of(net)
    aligned = tw.align(net, a, noisy(a), TASK, two_batches(), by="activations")
    assert len(aligned.unseen) == 1
    assert f"matched by weights, since they have no activations: {aligned.unseen[0]}" in str(aligned)
    assert "no activations" not in str(tw.align(net, a, noisy(a), TASK, two_batches()))


class Held:
    """A batch whose tensors only the network looks for."""

    def __init__(self, x, y):
        self.x, self.y = x, y


def test_align_by_activations_refuses_batches_without_tensors_for_the_network():
    net = Of(lambda net, batch: net.two(net.one(batch.x).relu()), one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    task = replace(TASK, predict=lambda net, batch: (net(batch), batch.y))
    net.double()
    batches = [Held(x.double(), y) for x, y in two_batches()]
    a = tw.Weights.of(net)
    with pytest.raises(tw.ThalwegError, match="the network gets none that is in a tuple, list, dict or dataclass"):
        tw.align(net, a, noisy(a), task, batches, by="activations")


@pytest.mark.parametrize("other", ["b", 3, None])
def test_align_by_activations_leaves_out_batches_with_another_path(other):
    def forward(net, x, mode):
        return net.two(net.one(x).relu() if mode == "a" else net.one(x).tanh())

    torch.manual_seed(0)
    net = Of(forward, one=nn.Linear(6, 8), two=nn.Linear(8, 4))
    task = replace(TASK, predict=lambda net, batch: (net(batch[0], batch[2]), batch[1]))
    one, two = two_batches()
    broken = (two[0] / 0, two[1])  # would be refused if it were used
    a = tw.Weights.of(net)
    aligned = tw.align(net, a, noisy(a), task, [(*one, "a"), (*broken, other)], by="activations")
    assert str(aligned).endswith("batches left out, since they have other shapes, strings or numbers than the first: 1")
    assert torch.equal(aligned.vector, noisy(a).vector)


def test_aligned_names_dropped_groups():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    a = tw.Weights.of(net)
    groups = {"hidden": {"0.weight": 0, "0.bias": 0}}
    with pytest.warns(UserWarning, match="renumbering 'hidden' of groups= changes"):
        aligned = tw.align(net, a, noisy(a), TASK, two_batches(), groups=groups)
    assert "groups: 0, so nothing was renumbered" in str(aligned)
    assert "dropped, since renumbering them changed the outputs or gradients: hidden (by " in str(aligned)
