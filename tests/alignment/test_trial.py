"""The proof by trying: it sees every error, and refuses nothing that is right."""

from math import factorial

import pytest
import torch
from align_zoo import Of
from torch import nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.alignment.groups import Group, by_hand
from thalweg.alignment.network_copy import NetworkCopy
from thalweg.alignment.outputs import apart
from thalweg.alignment.trial import Trial, _order

pytestmark = pytest.mark.filterwarnings("ignore:renumbering .* of groups= changes")

TASK = tw.classification()
HAND = {"hidden": {"one.weight": 0, "one.bias": 0, "two.weight": 1}}
WRONG = {"hidden": {"one.weight": 0, "two.weight": 1}}


def batch():
    return torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(32).long()


def network(last, hidden=8):
    torch.manual_seed(0)
    net = Of(lambda net, x: last(net.two(net.one(x).relu())), one=nn.Linear(6, hidden), two=nn.Linear(hidden, 4))
    net.one.bias.data.normal_()
    return net


def masked(value, count):
    return lambda logits: logits.masked_fill(torch.arange(4) < count, value)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("value", [-1e9, -1e12, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min])
def test_trial_masked_logits_hide_no_error(value, count):
    net = network(masked(value, count))
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=HAND).groups
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=WRONG).dropped


@pytest.mark.parametrize("last", [lambda x: x + 1e10, lambda x: x + torch.tensor([0, 0, 0, -1e10])])
def test_trial_large_offsets_hide_no_error(last):
    net = network(last)
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=HAND).groups
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=WRONG).dropped


def test_trial_masked_logits_do_not_hide_random_numbers():
    net = network(lambda logits: masked(-1e12, 1)(F.dropout(logits, 0.5, True)))
    with pytest.raises(tw.ThalwegError, match="draws random numbers"):
        tw.symmetries(net, TASK, batch())


def predicting(last):
    """A task whose predictions the hook makes of the logits, which are what is compared."""
    return tw.Task(lambda out, batch: out.sum(), lambda net, batch: (last(net(batch[0])), batch[1]))


def test_trial_compares_imaginary_parts():
    task = predicting(lambda logits: torch.complex(torch.ones_like(logits), logits))
    net = network(lambda logits: logits)
    assert "hidden" in tw.symmetries(net, task, batch(), groups=HAND).groups
    assert "hidden" in tw.symmetries(net, task, batch(), groups=WRONG).dropped


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # once; as an error it leaks the tensor
@pytest.mark.parametrize(
    "last",
    [
        lambda logits: logits.to_sparse(),
        lambda logits: logits.to_sparse_csr(),
        lambda logits: torch.nested.nested_tensor([logits[:3], logits[3:]]),
        lambda logits: torch.nested.nested_tensor([logits[:3], logits[3:]], layout=torch.jagged),
    ],
)
def test_trial_compares_sparse_and_nested_outputs(last):
    net = network(lambda logits: logits)
    assert "hidden" in tw.symmetries(net, predicting(last), batch(), groups=HAND).groups
    assert "hidden" in tw.symmetries(net, predicting(last), batch(), groups=WRONG).dropped


def test_trial_perturbs_all_but_what_would_make_nan():
    """Biases of zero would hide that they are left out of the group."""

    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)
            self.radius = nn.Parameter(torch.full((4,), 0.9999))
            nn.init.zeros_(self.one.bias)

        def forward(self, x):
            return self.two(self.one(x).relu()) * (1 - self.radius**2).sqrt()

    net = Rooted()
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=HAND).groups
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=WRONG).dropped
    network = NetworkCopy(net, TASK, batch())
    trial = Trial(network, by_hand(HAND, network.tensors))
    assert [name for name, value in net.named_parameters() if torch.equal(value.double(), trial.given[name])] == [
        "radius"
    ]


@pytest.mark.parametrize(
    ("pool", "groups"),
    [
        (lambda h: F.max_pool1d(h, 2), 0),  # of three units, the last is left out
        (lambda h: F.avg_pool1d(h, 2, padding=1, stride=9), 0),  # only the first
        (lambda h: F.max_pool1d(h, 2, dilation=2), 0),  # not the second
        (lambda h: F.interpolate(h, 1), 0),
        (lambda h: F.max_pool1d(h, 3), 1),
        (lambda h: F.avg_pool1d(h, 3), 1),
        (lambda h: F.adaptive_max_pool1d(h, 1), 1),
    ],
)
def test_symmetries_pooling_to_one_entry_pins_unless_it_covers_all(pool, groups):
    net = Of(lambda net, x: net.two(pool(net.one(x)[:, None])[:, 0]), one=nn.Linear(6, 3), two=nn.Linear(1, 4))
    symmetries = tw.symmetries(net, TASK, batch())
    assert len(symmetries.groups) == groups
    assert not symmetries.dropped


@pytest.mark.parametrize("first", [(0, 1), (0, 2), (1, 2)])
def test_trial_sees_which_of_three_units_is_apart(first):
    net = Of(lambda net, x: net.two(net.one(x)[:, first].amax(1, True)), one=nn.Linear(6, 3), two=nn.Linear(1, 4))
    wrong = {"hidden": {"one.weight": 0, "one.bias": 0}}
    assert "hidden" in tw.symmetries(net, TASK, batch(), groups=wrong).dropped


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_trial_orders_make_every_order(size):
    for name in "abc":
        orders = [tuple(_order(Group(name, size, ()), {}, attempt).tolist()) for attempt in range(2)]
        made = {tuple(range(size))}
        while more := {tuple(one[k] for k in order) for one in made for order in orders} - made:
            made |= more
        assert len(made) == factorial(size)


def test_trial_rows_of_units_inside_others_are_independent():
    """Rows k and k + 2 of two units have different orders in some attempt, as any others."""

    def forward(net, x):
        hidden = (net.one(x)[..., None] * net.both).transpose(1, 2).reshape(len(x), -1, 3)
        return net.two(((hidden + hidden.flip(2)) * net.scale).amax(1))

    both, scale = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(4, 3))
    net = Of(forward, one=nn.Linear(6, 6, bias=False), both=both, scale=scale, two=nn.Linear(3, 4))
    symmetries = tw.symmetries(net, TASK, batch())
    assert symmetries.groups["scale[0]"].within == ""


def test_symmetries_of_units_that_are_halved_again_and_again():
    """Where an index that chooses units is itself taken apart."""

    def halved(net, x):
        hidden = net.one(x)
        for _ in range(3):
            hidden = hidden[:, ::2] * hidden[:, 1::2]
        return net.two(hidden)

    def hadamard(net, x):
        hidden = net.one(x)
        for k in range(6):
            pairs = hidden.view(len(x), -1, 2, 2**k)
            one, two = pairs[:, :, 0], pairs[:, :, 1]
            hidden = torch.stack([one + two, one - two], 2).view(len(x), -1)
        return net.two(hidden.relu())

    for forward, size, left in ((halved, 8, 1), (hadamard, 64, 64)):
        net = Of(forward, one=nn.Linear(6, size), two=nn.Linear(left, 4))
        symmetries = tw.symmetries(net, TASK, batch())
        assert not symmetries.groups
        assert not symmetries.dropped
        assert "one.weight[0]" in symmetries.pinned


def test_outputs_that_vary_by_rounding_alone_are_not_apart():
    """As a cosine similarity that is always one; how far outputs vary is no measure for these."""
    one, two = torch.tensor([1.0, 1.0 - 6e-8]), torch.tensor([1.0 - 6e-8, 1.0])
    assert apart([one], [two]) > 0.9
    assert apart([one], [two], rounding=1e-6) == 0
    assert apart([one], [two * 1.1], rounding=1e-6) > 0.9
