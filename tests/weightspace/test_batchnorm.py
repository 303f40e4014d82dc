"""Statistics equal the pooled mean and variance of everything a layer saw."""

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw


def seen_by(module, layer, batches):
    """What reaches `layer` when every batch-norm layer normalises by the batch, and dropout is off."""
    seen = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()
    for x, _ in batches:
        module(x)
    hook.remove()
    return torch.cat([x.transpose(0, 1).reshape(x.shape[1], -1) for x in seen], dim=1)


def test_update_bn_pools_statistics_over_unequal_batches():
    case = ZOO["conv_bn"]
    module, batches = case.module(1), case.batches()
    before = bits(module)
    weights = tw.update_bn(module, tw.Weights.of(module), batches)
    assert same_bits(before, bits(module))
    for name in ("1", "5"):
        copy = case.module(1)
        inputs = seen_by(copy, copy.get_submodule(name), batches)
        assert torch.allclose(weights.buffers[f"{name}.running_mean"], inputs.mean(1), rtol=1e-12, atol=1e-14)
        assert torch.allclose(weights.buffers[f"{name}.running_var"], inputs.var(1), rtol=1e-12)
        assert int(weights.buffers[f"{name}.num_batches_tracked"]) == len(batches)


def test_update_bn_does_not_average_unequal_batches_as_if_equal():
    """The same data cut otherwise gives a first layer the same statistics."""
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x = torch.randn(20, 4).double()
    one, two = (
        tw.update_bn(module, tw.Weights.of(module), [(part, None) for part in x.split(cut)])
        for cut in ([20], [2, 15, 3])
    )
    assert torch.allclose(one.buffers["0.running_var"], two.buffers["0.running_var"], rtol=1e-12)
    assert torch.allclose(one.buffers["0.running_var"], x.var(0), rtol=1e-12)


def test_update_bn_with_dropout_off_pools_a_layer_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.norm = nn.Dropout(0.9), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(self.drop(x)) + self.norm(2 * x)

    x = torch.randn(10, 3).double()
    module = Twice().double()
    weights = tw.update_bn(module, tw.Weights.of(module), [x])
    both = torch.cat([x, 2 * x])
    assert torch.allclose(weights.buffers["norm.running_mean"], both.mean(0))
    assert torch.allclose(weights.buffers["norm.running_var"], both.var(0))


def test_update_bn_ignores_old_statistics():
    module = nn.BatchNorm1d(2)
    module.running_mean.fill_(float("nan"))
    weights = tw.update_bn(module, tw.Weights.of(module), [torch.randn(5, 2)])
    assert weights.buffers["running_mean"].isfinite().all()


def test_update_bn_calls_the_network_as_the_task_does():
    module = nn.BatchNorm1d(2)
    task = tw.Task(tw.classification().loss, lambda net, batch: (net(batch["odd name"]), None))
    batch = {"odd name": torch.randn(6, 2)}
    weights = tw.update_bn(module, tw.Weights.of(module), [batch], task)
    assert torch.allclose(weights.buffers["running_mean"], batch["odd name"].mean(0))


def test_update_bn_of_a_network_without_batch_norm():
    module = ZOO["mlp"].module(1)
    weights = tw.Weights.of(module)
    assert torch.equal(tw.update_bn(module, weights, []).vector, weights.vector)


def test_update_bn_refuses_a_batch_of_one():
    module = nn.BatchNorm1d(2)
    with pytest.raises(tw.ThalwegError, match="a batch of one example"):
        tw.update_bn(module, tw.Weights.of(module), [torch.randn(4, 2), torch.randn(1, 2)])


def test_update_bn_refuses_no_batches():
    module = nn.BatchNorm1d(2)
    with pytest.raises(tw.ThalwegError, match="bn_batches are empty"):
        tw.update_bn(module, tw.Weights.of(module), [])


@pytest.mark.parametrize(("value", "name"), [(torch.nan, "NaN"), (torch.inf, "infinity")])
def test_update_bn_names_batches_that_are_not_finite(value, name):
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    batches = [(torch.randn(4, 2), None), (torch.full((4, 2), value), None)]
    with pytest.raises(tw.ThalwegError, match=f"statistics are not finite: item 0 of batch 2 holds {name}, so clean"):
        tw.update_bn(module, tw.Weights.of(module), batches)
