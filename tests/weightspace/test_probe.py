"""The probe: an ordinary module over one vector, and what would cut it loose."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.weightspace.probe import Probe


def plain_gradient(case, module, batch):
    """Autograd on an untouched module, as a vector in the layout's order."""
    module.zero_grad()
    case.losses(module, batch).mean().backward()
    inner = getattr(module, "_orig_mod", module)
    return torch.cat([p.grad.reshape(-1) for p in inner.parameters() if p.requires_grad])


def train_mode(module):
    return getattr(module, "_orig_mod", module).train()


@pytest.mark.parametrize("by_copy", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_probe_computes_what_the_module_computes(name, by_copy):
    case = ZOO[name]
    probe, module = Probe(case.module(1)), case.module(2)
    if by_copy:
        probe = ByCopy(case.module(1))
    probe.load(tw.Weights.of(module))
    for part in (probe.module, module):
        train_mode(part)
    batch = case.batches()[0]
    torch.manual_seed(0)
    probe.backward(case.losses(probe.module, batch).mean())
    torch.manual_seed(0)
    expected = plain_gradient(case, module, batch)
    assert torch.allclose(probe.to_layout_order(probe.grad), expected, rtol=1e-12, atol=1e-14)
    assert expected.abs().max() > 0


class ByCopy(Probe):
    """The second way, which recurrent layers take on a GPU, forced on the CPU."""

    def _can_view(self, module) -> bool:
        return False


@pytest.mark.parametrize("name", ZOO)
def test_probe_leaves_the_callers_module_alone(name):
    case = ZOO[name]
    module = case.module(1)
    before = bits(module)
    probe = Probe(module, tw.Weights.of(case.module(2)))
    probe.backward(case.losses(probe.module, case.batches()[0]).mean())
    probe.point.zero_()
    assert same_bits(before, bits(module))


def test_probe_parameters_are_views_of_one_vector():
    probe = Probe(ZOO["tied_lstm"].module(1))
    probe.point.fill_(0.25)
    assert all(p.eq(0.25).all() for p in probe.module.parameters())
    assert all(w.eq(0.25).all() for w in probe.module.lstm._flat_weights)
    assert probe.module.output.weight is probe.module.embedding.weight


def test_probe_keeps_channels_last_strides():
    probe = Probe(ZOO["channels_last"].module(1))
    assert probe.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(probe.to_layout_order(probe.point), tw.Weights.of(ZOO["channels_last"].module(1)).vector)
    vector = torch.randn_like(probe.point)
    assert torch.equal(probe.to_layout_order(probe.from_layout_order(vector)), vector)
    assert not torch.equal(probe.from_layout_order(vector), vector)


def test_probe_with_two_points_in_one_graph_is_an_error():
    probe = Probe(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)))
    loss = probe.module(torch.randn(4, 3)).sum()
    probe.point.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        probe.backward(loss)


BREAKERS = {
    "zero_grad": lambda m: m.zero_grad(),
    "double": lambda m: m.double(),
    "memory_format": lambda m: m.to(memory_format=torch.channels_last),
    "assign": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
    "parametrization": lambda m: parametrizations.weight_norm(m[0]),
    "data": lambda m: setattr(m[0].weight, "data", m[0].weight.data.clone()),
}


@pytest.mark.parametrize("breaker", BREAKERS.values(), ids=BREAKERS)
def test_probe_sees_a_parameter_outside_of_the_vector(breaker):
    probe = Probe(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten()))
    probe.check()
    breaker(probe.module)
    with pytest.raises(tw.ThalwegError, match=r"'0\.(weight|bias)' no longer lies in the vector"):
        probe.check()


def test_training_refuses_a_network_that_replaces_its_parameters():
    class Rebinds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            self.layer.weight.data = self.layer.weight.data.clone()
            return self.layer(x)

    batches = [(torch.randn(4, 2), torch.randint(2, (4,)))]
    with pytest.raises(tw.ThalwegError, match=r"'layer\.weight' no longer lies"):
        tw.fit(Rebinds(), tw.classification(), batches, epochs=1, lr=0.1)


class WithSpare(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(x))


def test_parameters_without_gradient_do_not_decay():
    module = WithSpare()
    batches = ZOO["mlp"].batches()
    trained = tw.fit(module.double(), tw.classification(), batches, epochs=3, lr=0.1, weight_decay=0.1)
    assert torch.equal(trained.state_dict()["spare.weight"], module.spare.weight)
    assert not torch.equal(trained.state_dict()["first.weight"], module.first.weight)


def test_module_with_tensors_of_a_forward_pass_can_be_copied():
    module = nn.Linear(2, 2)
    module.last = module(torch.randn(1, 2))
    assert Probe(module).module.last.requires_grad is False


def test_module_that_cannot_be_copied_is_named():
    module = nn.Linear(2, 2)
    module.stream = (i for i in range(3))
    with pytest.raises(tw.ThalwegError, match=r"copyable with copy\.deepcopy, and Linear is not"):
        Probe(module)


def test_probe_of_a_module_with_compiled_parts():
    module = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager"))
    weights = tw.Weights.of(module)
    assert weights.layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert torch.equal(Probe(module).to_layout_order(Probe(module).point), weights.vector)


def test_loss_that_ignores_the_weights_is_an_error():
    task = tw.Task(lambda outputs, targets: targets.sum(1), lambda net, batch: (net(batch[0]), batch[0]))
    with pytest.raises(tw.ThalwegError, match="does not depend on any moving weight"):
        tw.fit(nn.Linear(2, 2), task, [(torch.ones(3, 2),)], epochs=1, lr=0.1)
