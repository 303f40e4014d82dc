"""Networks whose first batch hides what a wrong order would change: the aligned network must compute the same later."""

import copy

import pytest
import torch
from align_zoo import Of
from torch import library, nn
from torch.nn import functional as F

import thalweg as tw

pytestmark = pytest.mark.filterwarnings("ignore:renumbering .* of groups= changes")

TASK = tw.classification()
DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=DRAW), torch.zeros(8).long()


def weight(*shape):
    return nn.Parameter(torch.randn(*shape))


def doubled(batch):
    return [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in batch]


def changed(make, batches, later, task=TASK, training=False):
    """How much outputs and targets of b change by alignment on a batch in float64, and the aligned network."""
    nets = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        nets.append(make())
    a, b = nets
    aligned = tw.align(a, tw.Weights.of(a), tw.Weights.of(b), task, batches)
    other = copy.deepcopy(b)
    aligned.load_into(other)
    with torch.no_grad():
        found = [task.predictions(net.double().train(training), doubled(later)) for net in (b, other)]
    return max(float((one - two).abs().max()) for one, two in zip(*found, strict=True)), aligned


class Nested(nn.Module):
    """Only the first units in training, as of nested dropout; it has no parameters."""

    def forward(self, x):
        return x * (torch.arange(x.shape[-1]) < 8) if self.training else x


class Buffers(nn.Module):
    """The same operations with another buffer in training, or where the batch says so."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 4)
        self.register_buffer("even", torch.ones(16), persistent=False)
        self.register_buffer("ramp", torch.linspace(0, 1, 16), persistent=False)

    def forward(self, x, mode="even"):
        return self.two(self.one(x).relu() * (self.ramp if self.training or mode == "ramp" else self.even))


def constants(net, x, mode):
    return net.two(net.one(x).relu() * (torch.linspace(0, 1, 16) if mode == "ramp" else torch.ones(16)))


def by_dtype(net, x):
    return constants(net, x.to(net.one.weight), "even" if x.is_floating_point() else "ramp")


class Settings:
    """An object in a batch, which can be moved to a device."""

    def __init__(self, mode):
        self.mode = mode

    def to(self, device):
        return self


def attention(net, x, causal):
    tokens = (net.tokens + net.one(x)[:, None])[:, None]
    return net.two(F.scaled_dot_product_attention(tokens, tokens, tokens, is_causal=causal).mean((1, 2)))


def attending(forward):
    return Of(forward, tokens=weight(6, 5), one=nn.Linear(6, 5), two=nn.Linear(5, 4))


def masked(net, x):
    h, g = net.a(x).relu().clone(), net.b(x)
    h[g > 50.0] = 0
    return net.c(h) + net.d(g.tanh())


def stateful(net, x, state):
    start = torch.zeros(1, len(x), 6, dtype=x.dtype)
    start[0] = state
    return net.two(net.gru(x[:, None], start)[0][:, -1])


def remembering(net, x, past, has):
    """The layer mixes steps in time, which a recurrent layer gets in their order."""
    steps = net.mix(past.transpose(1, 2)).transpose(1, 2)
    return net.one(x) + has * net.two(net.gru(steps)[1][0])


def messages(net, nodes, edges):
    h = torch.einsum("bpd,pdh->bph", nodes, net.one).relu()
    return torch.einsum("bph,pho->bo", h + edges @ h, net.two)


@library.custom_op("thalweg_tests::limit_", mutates_args={"h"})
def limit_(h: torch.Tensor) -> None:
    h.copy_(torch.minimum(h, 50.0 + torch.arange(h.shape[-1]).to(h)))


@library.custom_op("thalweg_tests::clamp_max", mutates_args=())
def clamp_max(h: torch.Tensor) -> torch.Tensor:
    return torch.minimum(h, 50.0 + torch.arange(h.shape[-1]).to(h))


clamp_max.register_fake(torch.empty_like)


def limited(net, x):
    h = net.one(x).clone()
    limit_(h)
    return net.two(h)


def halved(net, x):
    """Two blocks of units that are one, of which every second is used: never, where inputs are small."""
    one, two = (x @ net.w).unflatten(1, (2, 8)).unbind(1)
    return x @ net.r + ((one + two)[:, ::2] @ net.o - 1e3).relu()


def layers(forward, units=16):
    return Of(forward, one=nn.Linear(6, units), two=nn.Linear(units, 4))


PAST, NODES, EDGES = (torch.randn(8, 7, n, generator=DRAW) for n in (6, 6, 7))
# the network, the batches of the alignment, a later one, whether in training, and how many groups there are
HIDDEN = {
    "a part without parameters in training": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), Nested(), nn.Linear(16, 4)), [(X, Y)], (X, Y), True, 0
    ),
    "causal in training": (
        lambda: attending(lambda net, x: attention(net, x, net.training)), [(X, Y)], (X, Y), True, 1
    ),
    "causal for a batch": (lambda: attending(attention), [(X, False, Y), (X, True, Y)], (X, True, Y), False, 1),
    "another buffer in training": (Buffers, [(X, Y)], (X, Y), True, 0),
    "another buffer for a batch": (Buffers, [(X, "even", Y), (X, "ramp", Y)], (X, "ramp", Y), False, 0),
    "another constant": (lambda: layers(constants), [(X, "even", Y), (X, "ramp", Y)], (X, "ramp", Y), False, 0),
    "another dtype": (lambda: layers(by_dtype), [(X, Y), (X.long(), Y)], (X.long(), Y), False, 0),
    "another setting of an object": (
        lambda: layers(lambda net, x, settings: constants(net, x, settings.mode)),
        [(X, Settings("even"), Y), (X, Settings("ramp"), Y)], (X, Settings("ramp"), Y), False, 0,
    ),
    "a mask without an entry": (
        lambda: Of(masked, a=nn.Linear(6, 16), b=nn.Linear(6, 16), c=nn.Linear(16, 4), d=nn.Linear(16, 4)),
        [(X, Y)], (X * 100, Y), False, 1,
    ),
    "first states of zero": (
        lambda: Of(stateful, gru=nn.GRU(6, 6, batch_first=True), two=nn.Linear(6, 4)),
        [(X, X * 0, Y)], (X, X.flip(0), Y), False, 0,
    ),
    "steps in time that do not count": (
        lambda: Of(remembering, one=nn.Linear(6, 4), mix=nn.Linear(7, 9), gru=nn.GRU(6, 5, batch_first=True),
                   two=nn.Linear(5, 4)),
        [(X, PAST, torch.zeros(8, 1), Y)], (X, PAST, torch.ones(8, 1), Y), False, 1,
    ),
    "a graph without edges": (
        lambda: Of(messages, one=weight(7, 6, 16), two=weight(7, 16, 4)),
        [(NODES, EDGES * 0, Y)], (NODES, EDGES, Y), False, 1,
    ),
    "every second unit of added blocks": (
        lambda: Of(halved, w=weight(6, 16), r=weight(6, 4), o=weight(4, 4)), [(X, Y)], (X * 1e4, Y), False, 1
    ),
    "an operation that only writes": (lambda: layers(limited), [(X, Y)], (X * 1000, Y), False, 0),
    "an operation with the name of another": (
        lambda: layers(lambda net, x: net.two(clamp_max(net.one(x)))), [(X, Y)], (X * 1000, Y), False, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_aligned_network_is_the_same_where_the_first_batch_hides_the_order(name):
    make, batches, later, training, groups = HIDDEN[name]
    difference, aligned = changed(make, batches, later, training=training)
    assert difference < 1e-10
    assert len(aligned.symmetries.groups) == groups, str(aligned.symmetries)
    assert not aligned.symmetries.dropped  # by the rules, not by the proof


def test_inputs_of_zero_are_moved_in_a_proof():
    """Groups by hand, which no rule checks: a state of zero would hide that its order is left out."""

    def forward(net, x, state):
        return net.two(net.one(x) + state)

    groups = {"hidden": {"one.weight": 0, "one.bias": 0, "two.weight": 1}}
    symmetries = tw.symmetries(layers(forward), TASK, (X, torch.zeros(8, 16), Y), groups=groups)
    assert "hidden" in symmetries.dropped


@pytest.mark.parametrize("detach", [True, False])
def test_targets_that_a_network_makes_keep_their_order(detach):
    """As in self-distillation."""

    def predict(net, batch):
        prediction, projection = net(batch[0])
        return prediction, projection.detach() if detach else projection

    task = tw.Task(lambda out, targets: ((out - targets) ** 2).mean(1), predict, probabilities=lambda out: out)

    def forward(net, x):
        projection = net.one(x).tanh()
        return net.two(projection), projection

    difference, aligned = changed(
        lambda: Of(forward, one=nn.Linear(6, 16), two=nn.Linear(16, 16)), [(X, Y)], (X, Y), task
    )
    assert difference < 1e-12
    assert not aligned.symmetries.groups


def test_a_part_that_the_task_calls_without_a_gradient_is_followed():
    def predict(net, batch):
        with torch.no_grad():
            scale = net.one(batch[0]).mean(1, keepdim=True)
        return net(batch[0]) * (1 + scale), batch[1]

    task = tw.Task(TASK.loss, predict)
    difference, aligned = changed(lambda: layers(lambda net, x: net.two(net.one(x).relu())), [(X, Y)], (X, Y), task)
    assert difference < 1e-10
    assert [group.size for group in aligned.symmetries.groups.values()] == [16]
    assert not aligned.symmetries.dropped


class Places(nn.Module):
    """An index that gives every second of eight units the same place, in a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("index", torch.arange(8) % 2, persistent=False)

    def forward(self):
        return self.index


@pytest.mark.parametrize(
    ("forward", "parts", "sizes"),
    [
        (lambda net, x: net.c(x) * torch.einsum("...i,...i->i", net.q, net.r).sum(),
         lambda: {"q": weight(9, 5), "r": weight(9, 5), "c": nn.Linear(6, 4)}, [9, 5]),
        (lambda net, x: F.conv1d((x @ net.w)[:, None], net.k, stride=2, padding=1)[:, 0] @ net.o,
         lambda: {"w": weight(6, 3), "k": weight(1, 1, 1), "o": weight(3, 4)}, []),
        (lambda net, x: net.o(F.max_pool1d((x @ net.w)[:, None], 9, return_indices=True)[1][:, 0].to(x)),
         lambda: {"w": weight(6, 9), "o": nn.Linear(1, 4)}, []),
        (lambda net, x: net.o(torch.stack([net.r(z[:, None] * net.u, net.h) for z in x @ net.w]).mean(1)),
         lambda: {"w": weight(6, 9), "u": weight(1, 3), "h": weight(9, 5), "r": nn.GRUCell(3, 5),
                  "o": nn.Linear(5, 4)}, [9, 3, 5]),
        (lambda net, x: net.o(net.r(torch.cat([net.t.expand(len(x), -1, -1), x[:, None]], 1))[1][0]),
         lambda: {"t": weight(4, 6), "r": nn.GRU(6, 5, batch_first=True), "o": nn.Linear(5, 4)}, [5]),
        (lambda net, x: F.scaled_dot_product_attention(net.q(x), net.k(x), net.v(x)) @ net.o,
         lambda: {"q": nn.Linear(6, 5), "k": nn.Linear(6, 5), "v": nn.Linear(6, 7), "o": weight(7, 4)}, [7, 5]),
        (lambda net, x: net.o(F.cosine_similarity(net.q, net.h, dim=-1) * net.w(x)),
         lambda: {"q": weight(9), "h": weight(9, 9), "w": nn.Linear(6, 9), "o": nn.Linear(9, 4)}, [9, 9]),
        (lambda net, x: net.o(net.w(x).type_as(x[:, :1])),
         lambda: {"w": nn.Linear(6, 9), "o": nn.Linear(9, 4)}, [9]),
        (lambda net, x: net.o(x.new_zeros(8, 3).scatter(1, torch.zeros(8, 9).long(), net.w(x))),
         lambda: {"w": nn.Linear(6, 9), "o": nn.Linear(3, 4)}, []),
        (lambda net, x: net.o(x.new_zeros(8, 3).scatter(1, torch.zeros(8, 9).long(), net.w(x), reduce="add")),
         lambda: {"w": nn.Linear(6, 9), "o": nn.Linear(3, 4)}, [9]),
        (lambda net, x: net.o(x.new_zeros(len(x), 3).index_copy(1, net.places(), net.w(x))),
         lambda: {"w": nn.Linear(6, 8), "o": nn.Linear(3, 4), "places": Places()}, []),
        (lambda net, x: net.o(torch.stack([x.new_zeros(3).index_put([net.places()], each) for each in net.w(x)])),
         lambda: {"w": nn.Linear(6, 8), "o": nn.Linear(3, 4), "places": Places()}, []),
        (lambda net, x: net.o(torch.stack([x.new_zeros(3).index_put([net.places()], each, True) for each in net.w(x)])),
         lambda: {"w": nn.Linear(6, 8), "o": nn.Linear(3, 4), "places": Places()}, [4]),
    ],
)  # fmt: skip
def test_rules_join_and_pin_what_the_proof_would_drop(forward, parts, sizes):
    difference, aligned = changed(lambda: Of(forward, **parts()), [(X, Y)], (X, Y))
    assert difference < 1e-10
    assert [group.size for group in aligned.symmetries.groups.values()] == sizes, str(aligned.symmetries)
    assert not aligned.symmetries.dropped


def test_align_warns_of_a_network_that_depends_on_its_precision():
    def forward(net, x):
        h = net.one(x)
        return net.two(h * torch.arange(16) if h.dtype == torch.float32 else h)

    nets = [tw.Weights.of(layers(forward)) for _ in range(2)]
    with pytest.warns(UserWarning, match=r"differ from those of b by .* of their size in the network's own precision"):
        tw.align(layers(forward), *nets, TASK, [(X, Y)])


def test_align_does_not_take_rounding_for_a_dependence_on_precision():
    """Outputs that are the same for every example, such as the similarity of a row to itself, vary by rounding alone,
    which here changes with the order of units but not with their size.
    """

    def forward(net, x):
        h = net.one(x)
        return net.two(h), 1 + (6e-8 * h.argmax(1) if h.dtype == torch.float32 else h.new_zeros(len(h)))

    task = tw.Task(lambda found, _: found[0].sum(1), lambda net, batch: (net(batch[0]), None))
    nets = [tw.Weights.of(layers(forward)) for _ in range(2)]
    assert tw.align(layers(forward), *nets, task, [(X, Y)]).symmetries.groups


class Positions(nn.Module):
    """Units with weights for each position, and an operation across positions or units that a flag turns on."""

    def __init__(self, across):
        super().__init__()
        self.one, self.two = weight(7, 6, 7), weight(7, 7, 4)
        self.conv, self.transposed = nn.Conv1d(7, 7, 1), nn.ConvTranspose1d(7, 7, 1)
        self.cell, self.lstm, self.across = nn.GRUCell(7, 7), nn.LSTM(7, 7), across

    def forward(self, x, flag):
        h = torch.einsum("bpi,pih->bph", x, self.one).tanh()
        more = torch.where(flag[:, None, None], self.across(self, h), 0 * h)
        return torch.einsum("bph,pho->bo", h + more, self.two)


BACKWARDS = torch.arange(7).flip(0)
ACROSS = {
    "a convolution": lambda net, h: net.conv(h),
    "a transposed convolution": lambda net, h: net.transposed(h),
    "a convolution of what is transposed": lambda net, h: net.conv(h.mT).mT,
    "a shift by padding": lambda net, h: F.pad(h, (0, 0, 1, -1)),
    "an embedding": lambda net, h: torch.stack([F.embedding(BACKWARDS, each) for each in h]),
    "an embedding bag": lambda net, h: torch.stack([F.embedding_bag(BACKWARDS[:, None], each) for each in h]),
    "an embedding bag with weights": lambda net, h: torch.stack(
        [
            F.embedding_bag(BACKWARDS.expand(7, 7), net.conv.weight[..., 0], per_sample_weights=each, mode="sum")
            for each in h
        ]
    ),
    "a diagonal of what is not square": lambda net, h: h + h[:, :1].diagonal(dim1=1, dim2=2)[..., None],
    "a group norm of what is transposed": lambda net, h: F.group_norm(h.permute(2, 1, 0), 1).permute(2, 1, 0),
    "a repetition": lambda net, h: h.repeat(1, 2, 1).reshape(-1, 7, 2, 7).mean(2),
    "a matrix norm": lambda net, h: h / torch.linalg.matrix_norm(h, 2)[:, None, None],
    "a nuclear norm": lambda net, h: h / torch.linalg.norm(h, "nuc", dim=(1, 2))[:, None, None],
    "a recurrent cell": lambda net, h: net.cell(h.reshape(-1, 7)).view_as(h),
    "a recurrent layer": lambda net, h: net.lstm(h.reshape(1, -1, 7))[0].view_as(h),
    "a softmax": lambda net, h: h.softmax(1),
    "a sum in order": lambda net, h: h.cumsum(1),
    "a gathering": lambda net, h: h[:, BACKWARDS],
    "a shift by slices": lambda net, h: torch.cat([h[:, 1:], h[:, :1]], 1),
    "a product with itself": lambda net, h: h @ h.mT @ h,
    "an average": lambda net, h: F.avg_pool1d(h.mT, 3, 1, 1).mT,
}


@pytest.mark.parametrize("name", ACROSS)
def test_units_have_one_order_where_something_is_computed_across_positions(name):
    batches = torch.randn(8, 7, 6, generator=DRAW), torch.zeros(8, dtype=torch.bool), Y
    later = batches[0], ~batches[1], Y
    unused = pytest.warns(UserWarning, match="took no part")  # the other layers
    with unused:
        difference, aligned = changed(lambda: Positions(ACROSS[name]), [batches], later)
    assert difference < 1e-9
    assert not aligned.symmetries.dropped


def test_channels_of_unpooled_values_and_their_indices_are_one_group():
    def forward(net, x):
        pooled, indices = F.max_pool2d(net.one(x).relu(), 2, return_indices=True)
        return net.two(F.max_unpool2d(net.middle(pooled).relu(), indices, 2)).flatten(1)

    net = Of(forward, one=nn.Conv2d(3, 8, 3, padding=1), middle=nn.Conv2d(8, 8, 1), two=nn.Conv2d(8, 4, 3, padding=1))
    symmetries = tw.symmetries(net, TASK, (torch.randn(8, 3, 8, 8), Y))
    assert [len(group.axes) for group in symmetries.groups.values()] == [6]
    assert not symmetries.dropped


class Skipping(nn.Module):
    """A block that is skipped at random in training, by a branch that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        if self.training and torch.rand(1).item() < 0.5:
            return x
        return x + self.two(self.one(x).relu())


def needing(net, x, targets=None):
    assert not net.training or targets is not None, "in training, targets must be passed"
    return net.two(net.one(x).relu())


def by_index(net, x):
    return net.two(net.one(x[:, 1:]) + net.table(x[:, 0].long()))


def queried(net, x):
    return F.scaled_dot_product_attention(net.one, x[..., None] * net.two, x[..., None] * net.three)


@pytest.mark.parametrize(
    ("make", "groups"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 16), Skipping(), Skipping(), nn.Linear(16, 4)), 3),
        (lambda: layers(needing), 1),
        (lambda: Of(by_index, one=nn.Linear(5, 16), table=nn.Embedding(3, 16), two=nn.Linear(16, 4)), 1),
        (lambda: Of(queried, one=weight(1, 5, 9), two=weight(6, 9), three=weight(6, 4)), 1),
    ],
)  # fmt: skip
def test_ordinary_networks_are_aligned_without_a_warning(make, groups):
    x = torch.cat([torch.tensor([0, 1, 2, 2, 1, 0, 1, 2])[:, None], X[:, 1:]], 1)
    net = make()
    task = tw.Task(lambda out, y: out.flatten(1).sum(1))
    assert len(tw.align(net, tw.Weights.of(net), tw.Weights.of(make()), task, [(x, Y)]).symmetries.groups) == groups


def test_random_targets_are_not_compared():
    task = tw.Task(TASK.loss, lambda net, batch: (net(batch[0]), torch.randint(4, batch[1].shape)))
    net = layers(lambda net, x: net.two(net.one(x).relu()))
    assert len(tw.symmetries(net, task, (X, Y)).groups) == 1
