"""The language model: its size, its start, and the state it carries on."""

import pytest
import torch
from torch.nn import functional as F

from thalweg import models

FRESH, ON = torch.tensor(1.0), torch.tensor(0.0)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return models.Lstm(hidden=6, words=11, batch=3, init=0.5).double()


@pytest.fixture
def tokens():
    return torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("size", "hidden", "init", "dropout"), [("large", 1500, 0.04, 0.65), ("medium", 650, 0.05, 0.5)]
)
def test_lstm_sizes_of_the_tutorial(size, hidden, init, dropout):
    with torch.device("meta"):
        net = models.lstm(size)
    layer = 4 * hidden * (hidden + hidden) + 2 * 4 * hidden
    assert sum(p.numel() for p in net.parameters()) == 2 * 10_000 * hidden + 10_000 + 2 * layer
    assert net.hidden.shape == net.cell.shape == (2, 20, hidden)
    assert net.dropout.p == dropout
    assert models.recurrent.SIZES[size][1] == init


def test_lstm_weights_and_biases_start_uniform():
    net = models.Lstm(hidden=40, words=30, batch=2, init=0.04)
    for name, parameter in net.named_parameters():
        assert float(parameter.detach().abs().max()) <= 0.04, name
        assert float(parameter.detach().std()) == pytest.approx(0.04 / 3**0.5, rel=0.3), name


def test_lstm_medium_runs():
    net = models.lstm("medium", words=30, batch=2)
    assert float(net.output.weight.detach().abs().max()) == pytest.approx(0.05, rel=1e-2)
    assert net(torch.zeros(2, 4, dtype=torch.int64), FRESH).shape == (2, 4, 30)


def test_lstm_of_pieces_gives_what_the_whole_gives(net, tokens):
    net.eval()
    whole = net(tokens, FRESH)
    pieces = [net(tokens[:, :5], FRESH), net(tokens[:, 5:], ON)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


def test_lstm_two_layers_are_those_of_torch(net, tokens):
    net.eval()
    stack = torch.nn.LSTM(6, 6, num_layers=2, batch_first=True).double()
    for k, layer in enumerate(net.layers):
        for name, parameter in layer.named_parameters():
            getattr(stack, name.replace("l0", f"l{k}")).data.copy_(parameter.data)
    outputs, (hidden, cell) = stack(net.embedding(tokens))
    torch.testing.assert_close(net(tokens, FRESH), net.output(outputs))
    torch.testing.assert_close(net.hidden, hidden.detach())
    torch.testing.assert_close(net.cell, cell.detach())


@pytest.mark.parametrize("fresh", [FRESH, torch.ones(1), torch.ones(1, 1)])
def test_lstm_state_is_reset_by_a_fresh_batch(net, tokens, fresh):
    net.eval()
    first = net(tokens, FRESH)
    assert not torch.allclose(net(tokens, ON), first)
    net.hidden.fill_(torch.nan)  # what a diverged run leaves
    torch.testing.assert_close(net(tokens, fresh), first)


def test_lstm_state_is_no_part_of_the_weights(net):
    assert {"hidden", "cell"} <= dict(net.named_buffers()).keys()
    assert not {"hidden", "cell"} & net.state_dict().keys()


def test_lstm_gradient_does_not_flow_into_the_batch_before(net, tokens):
    def loss(fresh):
        return F.cross_entropy(net(tokens, fresh).flatten(0, 1), tokens.flatten())

    first = loss(FRESH)
    second = loss(ON)
    second.backward()
    first.backward()  # its graph was not part of the second's, and what it saved was not overwritten
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    assert not net.hidden.requires_grad
    assert not net.cell.requires_grad


def test_lstm_state_keeps_its_place_in_memory(net, tokens):
    places = net.hidden.data_ptr(), net.cell.data_ptr()
    buffers = net.hidden, net.cell
    for fresh in (FRESH, ON, ON):
        net(tokens, fresh).sum().backward()
    assert (net.hidden.data_ptr(), net.cell.data_ptr()) == places
    assert net.hidden is buffers[0]
    assert net.cell is buffers[1]


def test_lstm_dropout_acts_on_inputs_of_each_layer_and_the_last_output(net, tokens):
    calls = []
    net.dropout.register_forward_hook(lambda module, inputs, output: calls.append(output.shape))
    net.train()
    torch.manual_seed(0)
    once = net(tokens, FRESH)
    torch.manual_seed(0)
    torch.testing.assert_close(net(tokens, FRESH), once)
    assert not torch.allclose(net(tokens, FRESH), once)
    assert calls == [(3, 8, 6)] * 9


@pytest.mark.parametrize("shape", [(2, 8), (4, 8), (3,)])
def test_lstm_refuses_a_batch_that_does_not_fit_the_state(net, shape):
    with pytest.raises(ValueError, match=r"a batch of 3, one row for each state .* got \(.*: drop the short batch, or"):
        net(torch.zeros(shape, dtype=torch.int64), FRESH)


def test_lstm_refuses_an_unknown_size():
    with pytest.raises(ValueError, match="size must be 'large' or 'medium'; got 'small'"):
        models.lstm("small")
