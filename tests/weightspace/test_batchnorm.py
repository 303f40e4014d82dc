"""Statistics equal the pooled mean and variance of everything a layer saw."""

import pytest
import torch
from torch import nn
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.runtime.rng import MEASURING, seeded


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


def test_update_bn_of_layers_in_several_precisions():
    """As of a frozen part in another precision than the rest."""

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.BatchNorm1d(4, affine=False).float(), nn.BatchNorm1d(4).double()

        def forward(self, x):
            return self.last(self.first(x.float()).double())

    module, batches = Cast(), [(torch.randn(size, 4).double(), None) for size in (8, 5)]
    found = tw.update_bn(module, tw.Weights.of(module), batches).buffers
    for name in ("first", "last"):
        copy = Cast()
        inputs = seen_by(copy, copy.get_submodule(name), batches)
        assert found[f"{name}.running_var"].dtype == inputs.dtype
        assert torch.allclose(found[f"{name}.running_mean"], inputs.mean(1), rtol=1e-6, atol=1e-7)
        assert torch.allclose(found[f"{name}.running_var"], inputs.var(1), rtol=1e-6)


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


def padded_crops():
    """Random images whose crops have dark borders, as in training on CIFAR."""
    with seeded(0):
        images, labels = torch.randint(100, 256, (96, 3, 8, 8), dtype=torch.uint8), torch.arange(96) % 10
    return tw.data.DeviceBatches(images, labels, 16, shuffle=True, crop=2, flip=True)


def naive_statistics(module, batches):
    """Mean over all batches of the mean and the variance of the first layer's outputs."""
    outputs = torch.cat([module[0](x.double()) for x, _ in batches])
    return outputs.mean((0, 2, 3)), outputs.var((0, 2, 3))


def test_update_bn_of_augmented_batches_pools_what_was_drawn():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).double()
    batches = padded_crops()
    task = tw.Task(nn.functional.cross_entropy, lambda net, batch: (net(batch[0].double()), batch[1]))
    found = tw.update_bn(module, tw.Weights.of(module), batches, task)
    with seeded(MEASURING), torch.no_grad():
        mean, variance = naive_statistics(module, batches)
    assert torch.allclose(found.buffers["1.running_mean"], mean, rtol=1e-12)
    assert torch.allclose(found.buffers["1.running_var"], variance, rtol=1e-12)
    with torch.no_grad():
        plain, _ = naive_statistics(module, batches.clean())
    assert not torch.allclose(plain, mean, rtol=1e-2)  # the borders count


def test_scan_recomputes_statistics_of_the_same_augmented_batches_at_every_point():
    case = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    batches, task, point = padded_crops(), tw.classification(), tw.Weights.of(case)
    data, found = {"test": batches.clean()}, tw.update_bn(case, point, batches)
    again = tw.scan(case, [point] * 3, task, data, bn_batches=batches).values["test"]["loss"]
    assert len({*again.tolist()}) == 1
    assert again[0] == pytest.approx(float(tw.scan(case, [found], task, data).values["test"]["loss"][0]), rel=1e-6)
