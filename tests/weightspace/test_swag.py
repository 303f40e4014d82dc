"""SWAG against closed forms: moments by numpy, covariances of its samples, and SGD on a quadratic."""

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw


def point(values):
    net = nn.Linear(len(values), 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.as_tensor(values)[None])
    return tw.Weights.of(net)


def drawn(count, size=4, seed=0):
    mix = torch.randn(size, size, generator=torch.Generator().manual_seed(99)).double()
    draws = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).double()
    return 1000 + draws @ mix  # far from zero, where squares would cancel


def covariance(values, rank, scale):
    """By its definition, in numpy."""
    values, mean = values.numpy(), values.numpy().mean(0)
    last = values[-rank:] - mean if rank else values[:0]
    low = last.T @ last / (len(last) - 1) if rank else 0
    return scale * (np.diag(((values - mean) ** 2).mean(0)) + low)


def test_swag_mean_variance_and_deviations():
    values = drawn(9)
    swag = tw.SWAG([point(v) for v in values], rank=5)
    assert torch.allclose(swag.mean.vector, values.mean(0), rtol=1e-14)
    assert torch.allclose(swag.variance, values.var(0, correction=0), rtol=1e-9)
    assert torch.allclose(swag.deviations, values[-5:] - values.mean(0), rtol=1e-9)
    assert repr(swag) == "SWAG(9 networks, rank 5 of 5)"


@pytest.mark.parametrize(("rank", "scale"), [(5, 0.5), (20, 0.5), (0, 1.0), (3, 0.25)])
def test_swag_samples_have_the_covariance_of_the_paper(rank, scale):
    values = drawn(9)
    swag = tw.SWAG([point(v) for v in values], rank=rank)
    samples = torch.stack([w.vector for w in swag.sample(8000, scale=scale, seed=1)])
    expected = covariance(values, rank, scale)
    assert samples.mean(0).numpy() == pytest.approx(values.mean(0).numpy(), abs=0.1)
    assert np.cov(samples.numpy().T) == pytest.approx(expected, abs=0.07 * np.abs(expected).max())


def test_swag_low_rank_of_all_networks_is_the_sample_covariance():
    values = drawn(12)
    rows = tw.SWAG([point(v) for v in values], rank=12).deviations
    assert (rows.T @ rows / 11).numpy() == pytest.approx(np.cov(values.numpy().T), rel=1e-9)


def test_swag_variance_of_sgd_on_a_quadratic():
    """Weights under SGD on h/2 (w - noise)^2 vary by lr h s^2 / (2 - lr h) around the mean of the noise."""
    lr, h, spread, size = 0.3, 1.0, 2.0, 400
    torch.manual_seed(0)
    model = nn.Linear(size, 1, bias=False).double()
    nn.init.constant_(model.weight, 5.0)
    optimizer, swag = torch.optim.SGD(model.parameters(), lr=lr), tw.SWAG(rank=10)
    for step in range(450):
        noise = 5 + spread * torch.randn(1, size).double()
        optimizer.zero_grad()
        (h / 2 * (model.weight - noise).square().sum()).backward()
        optimizer.step()
        if step >= 50:
            swag.collect(model)
    assert float(swag.variance.mean()) == pytest.approx(lr * h * spread**2 / (2 - lr * h), rel=0.03)
    assert float(swag.mean.vector.mean()) == pytest.approx(5, abs=0.02)


def test_swag_seed_and_scale():
    swag = tw.SWAG([point(v) for v in drawn(5)])
    few, many, other = swag.sample(2, seed=3), swag.sample(4, seed=3), swag.sample(2, seed=4)
    assert [torch.equal(a.vector, b.vector) for a, b in zip(few, many, strict=False)] == [True, True]
    assert not torch.equal(few[0].vector, other[0].vector)
    assert torch.equal(swag.sample(1, scale=0)[0].vector, swag.mean.vector)
    assert few[1].made == {"by": "SWAG", "scale": 0.5, "seed": 3, "number": 1}
    near, far = (w.distance(swag.mean) for w in (swag.sample(1, 0.25)[0], swag.sample(1, 1.0)[0]))
    assert far == pytest.approx(2 * near, rel=1e-9)


def test_swag_samples_of_one_seed_are_the_same_in_every_precision():
    networks = [nn.Linear(8, 4) for _ in range(4)]
    narrow = tw.SWAG([tw.Weights.of(network) for network in networks])
    wide = tw.SWAG([tw.Weights.of(network.double()) for network in networks])
    for a, b in zip(wide.sample(2, seed=3), narrow.sample(2, seed=3), strict=True):
        torch.testing.assert_close(a.vector.float(), b.vector)


def test_swag_leaves_the_callers_random_state():
    swag = tw.SWAG([point(v) for v in drawn(3)])
    before = torch.get_rng_state()
    swag.sample(2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("rank", [0, 2, 20])
def test_swag_save_and_load(tmp_path, rank):
    case = ZOO["conv_bn"]
    members = [tw.fit(case.module(s), case.task, case.batches(), epochs=1, lr=0.1) for s in range(4)]
    swag = tw.SWAG(members[:3], rank=rank)
    swag.save(tmp_path / "swag.safetensors")
    back = tw.SWAG.load(tmp_path)
    for one in (swag, back):
        one.collect(members[3])
    assert torch.equal(swag.sample(1)[0].vector, back.sample(1)[0].vector)
    assert (back.count, back.rank, repr(back)) == (4, rank, repr(swag))


def test_swag_samples_of_batch_norm_networks_need_update_bn():
    case = ZOO["conv_bn"]
    members = [tw.fit(case.module(s), case.task, case.batches(), epochs=1, lr=0.1) for s in range(3)]
    [sample] = tw.SWAG(members).sample(1)
    with pytest.raises(tw.ThalwegError, match="member 1 has no batch-norm statistics"):
        tw.Ensemble(case.module(1), [sample])
    ready = tw.update_bn(case.module(1), sample, case.batches())
    found, net = tw.Ensemble(case.module(1), [ready]).score(case.task, case.batches()), case.module(1).eval()
    ready.load_into(net)
    inputs, labels = map(torch.cat, zip(*case.batches(), strict=True))
    assert found["nll"] == pytest.approx(nn.functional.cross_entropy(net(inputs), labels).item(), rel=1e-10)


def test_swag_of_frozen_and_half_precision_networks():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(torch.bfloat16)
    net[0].requires_grad_(False)
    swag = tw.SWAG()
    for k in range(3):
        with torch.no_grad():
            net[1].weight.fill_(1 + k / 64)
        swag.collect(net)
    assert float(swag.variance[0]) == pytest.approx(2 / 3 / 64**2, rel=1e-5)  # in bfloat16 it would be rounded away
    [sample] = swag.sample(1)
    assert sample.vector.dtype == torch.bfloat16
    assert torch.equal(sample.frozen["0.weight"], net[0].weight)
    net[0].weight.data.mul_(2)
    with pytest.raises(tw.ThalwegError, match=r"the frozen parameter '0\.weight' differs"):
        swag.collect(net)


def test_swag_refuses_bad_input():
    swag = tw.SWAG([point([1.0, 2.0])])
    for call in (lambda: swag.sample(1), lambda: tw.SWAG().sample(1)):
        with pytest.raises(tw.ThalwegError, match="SWAG needs at least 2 collected networks for this, and has"):
            call()
    with pytest.raises(tw.ThalwegError, match="at least 1 collected networks"):
        tw.SWAG().mean  # noqa: B018
    with pytest.raises(tw.ThalwegError, match="network 2 of SWAG holds NaN or infinity"):
        swag.collect(point([1.0, float("nan")]))
    with pytest.raises(tw.ThalwegError, match="do not describe the same network"):
        swag.collect(point([1.0, 2.0, 3.0]))
    with pytest.raises(tw.ThalwegError, match="must be Weights; got list"):
        swag.collect([1.0])
    assert swag.count == 1
    swag.collect(point([2.0, 2.0]))
    for bad, said in (
        ({"n": 0}, "n must be a whole number, at least 1; got 0"),
        ({"n": 1.5}, "n must be a whole number, at least 1; got 1.5"),
        ({"n": 1, "scale": -1}, "scale .* must be at least 0 and finite; got -1"),
        ({"n": 1, "scale": float("inf")}, "scale .* must be at least 0 and finite; got inf"),
        ({"n": 1, "seed": "a"}, "seed must be a whole number; got 'a'"),
    ):
        with pytest.raises(tw.ThalwegError, match=said):
            swag.sample(**bad)
    assert len(swag.sample(1, seed=2**70)) == 1
    for rank, said in ((1, "give a rank of at least 2, or 0"), (-1, "at least 0; got -1"), (2.5, "number, .* got 2.5")):
        with pytest.raises(tw.ThalwegError, match=said):
            tw.SWAG(rank=rank)
