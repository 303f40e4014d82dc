"""Planes: three points to coordinates and back, the main directions of many, and random ones around one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from zoo import ZOO

import thalweg as tw


@pytest.fixture(scope="module")
def points():
    return [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def plane(points):
    return tw.Plane(*points[:3])


def test_plane_returns_its_three_points_bit_for_bit(plane, points):
    for corner, point in zip(plane.corners, points, strict=False):
        assert torch.equal(plane.point(*corner).vector, point.vector)
        assert plane.project(point) == pytest.approx(corner, abs=1e-9)


def test_plane_basis_is_the_papers(plane, points):
    w1, w2, w3 = (point.vector for point in points[:3])
    u = w2 - w1
    v = (w3 - w1) - (w3 - w1) @ u / (u @ u) * u
    expected = w1 + 0.7 * u / u.norm() - 1.3 * v / v.norm()
    assert torch.allclose(plane.point(0.7, -1.3).vector, expected, atol=1e-12)


def test_plane_lengths_are_euclidean(plane):
    one, two = plane.point(0.5, 1.0), plane.point(3.5, 5.0)
    assert one.distance(two) == pytest.approx(5.0, rel=1e-9)


def test_plane_project_is_the_nearest_point(plane, points):
    x, y = plane.project(points[3])
    foot = plane.point(x, y)
    rest = points[3].vector - foot.vector
    for other in points[1:3]:
        assert abs(float(rest @ (other.vector - points[0].vector))) < 1e-9
    assert plane.distance(points[3]) == pytest.approx(float(rest.norm()), rel=1e-9)
    assert plane.distance(points[1]) == pytest.approx(0, abs=1e-6)


def test_plane_path_places_a_curve_point_by_point(plane, points):
    curve = tw.Bezier(points[0], points[1]).with_bends([points[3].vector])
    path = plane.path(curve, points=5)
    for t, place in zip(curve.spaced(5), path, strict=True):
        assert plane.project(curve.point(t)) == pytest.approx(place, abs=1e-9)


def test_plane_refuses_points_of_different_networks(points):
    other = tw.Weights.of(ZOO["mlp"].module(1))
    for wrong in ((other, points[0], points[1]), (points[0], other, points[1]), (points[0], points[1], other)):
        with pytest.raises(tw.ThalwegError, match="do not describe the same network"):
            tw.Plane(*wrong)


def test_plane_refuses_points_on_one_line(points):
    a, b = points[:2]
    with pytest.raises(tw.ThalwegError, match="do not lie on one line"):
        tw.Plane(a, b, tw.average([a, b], [0.3, 0.7]))
    with pytest.raises(tw.ThalwegError, match="do not lie on one line"):
        tw.Plane(a, b, tw.average([a, b, points[2]], [0.3, 0.7 - 1e-6, 1e-6]))
    with pytest.raises(tw.ThalwegError, match="the first and the second are equal"):
        tw.Plane(a, a, b)


def naive_main_directions(points):
    """Principal components of the stacked vectors, by numpy's SVD."""
    stacked = np.stack([point.vector.double().numpy() for point in points])
    centred = stacked - stacked.mean(0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    return stacked.mean(0), centred, singular, directions


def test_fitted_plane_holds_the_principal_components():
    points = [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in range(7)]
    mean, centred, singular, directions = naive_main_directions(points)
    plane = tw.Plane.fit(points)
    assert plane.shares == pytest.approx(singular[:2] ** 2 / (singular**2).sum(), rel=1e-9)
    for axis, step in enumerate([(2.5, 0.0), (0.0, -1.5)]):
        moved = plane.point(*step).vector.numpy() - mean
        expected = sum(step) * directions[axis]
        assert min(abs(moved - expected).max(), abs(moved + expected).max()) < 1e-10
    coordinates = centred @ directions[:2].T
    assert np.allclose(np.abs(plane.corners), np.abs(coordinates))
    left = np.sqrt((centred**2).sum(1) - (coordinates**2).sum(1))
    for point, corner, far in zip(points, plane.corners, left, strict=True):
        assert plane.project(point) == pytest.approx(corner, abs=1e-9)
        assert plane.distance(point) == pytest.approx(far, rel=1e-7)


def test_axes_of_a_fitted_plane_run_from_the_first_network_to_the_last():
    points = [tw.Weights.of(ZOO["mlp"].module(seed)) for seed in range(5)]
    for order in (points, points[::-1]):
        corners = tw.Plane.fit(order).corners
        assert corners[0][0] <= corners[-1][0]
        assert corners[0][1] <= corners[-1][1]


def test_fitted_plane_of_three_networks_is_the_plane_through_them(points):
    fitted, through = tw.Plane.fit(points[:3]), tw.Plane(*points[:3])
    assert sum(fitted.shares) == pytest.approx(1)
    for x, y in [(0.3, 0.2), (-2.0, 1.0)]:
        assert through.distance(fitted.point(x, y)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fitted_plane_keeps_small_directions_of_large_weights(dtype):
    module = nn.Linear(64, 64, bias=False).to(dtype)
    generator = torch.Generator().manual_seed(0)
    base = 1 + torch.rand(4096, generator=generator)
    moves = [torch.zeros(4096), *(0.01 * torch.randn(4096, generator=generator) for _ in range(3))]
    points = []
    for move in moves:
        module.weight.data.copy_((base + move).to(dtype).reshape(64, 64))
        points.append(tw.Weights.of(module))
    plane = tw.Plane.fit(points)
    *_, singular, _ = naive_main_directions([replace(p, vector=p.vector.float()) for p in points])
    assert plane.width == pytest.approx(singular[0], rel=1e-3)
    assert plane.point(0, 0).vector.dtype == plane.point(0.1, 0.1).vector.dtype == dtype


def test_plane_fit_refuses_bad_points(points):
    a, b = points[:2]
    with pytest.raises(tw.ThalwegError, match="a fitted plane needs at least 3 networks"):
        tw.Plane.fit([a])
    kept = tw.fit(nn.Linear(1, 1), tw.regression(), [(torch.ones(1, 1),) * 2], epochs=1, lr=0.1, keep=[1]).kept
    with pytest.raises(tw.ThalwegError, match=r"point 1 must be Weights; got Checkpoint: use its \.weights"):
        tw.Plane.fit([kept[1]] * 3)
    with pytest.raises(tw.ThalwegError, match=r"a fitted plane needs at least 3 networks.*got Weights"):
        tw.Plane.fit(a)
    line = [tw.average([a, b], [1 - t, t]) for t in (0.0, 0.3, 0.6, 1.0)]
    for flat in ([a, a, a], line):
        with pytest.raises(tw.ThalwegError, match="networks that do not lie on one line"):
            tw.Plane.fit(flat)
    with pytest.raises(tw.ThalwegError, match="point 1 and point 3 do not describe the same network"):
        tw.Plane.fit([a, b, tw.Weights.of(ZOO["mlp"].module(1))])
    broken = replace(b, vector=b.vector * float("nan"))
    for make in (tw.Plane.fit, lambda points: tw.Plane(*points)):
        with pytest.raises(tw.ThalwegError, match=r"finite weights, and '0\.weight' of point 2 is not"):
            make([a, broken, points[2]])
    with pytest.raises(tw.ThalwegError, match=r"finite weights, and '0\.weight' of point 1 is not"):
        tw.Plane.around(broken)


def test_random_directions_have_the_norm_of_each_filter():
    weights = tw.Weights.of(ZOO["conv_bn"].module(1))
    plane = tw.Plane.around(weights, seed=3)
    assert torch.equal(plane.point(0, 0).vector, weights.vector)
    for end in plane.points[1:]:
        for name, own in weights.layout.split(weights.vector).items():
            move = end.layout.split(end.vector)[name] - own
            if own.ndim < 2:
                assert not move.any()
            else:
                assert torch.allclose(move.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1))
    step = plane.point(plane.width, 0).vector
    assert torch.allclose(step, plane.points[1].vector)


def test_random_directions_may_have_the_norm_of_each_layer_or_of_the_network():
    weights = tw.Weights.of(ZOO["conv_bn"].module(1))
    by_layer, plain = tw.Plane.around(weights, "layer").points[1], tw.Plane.around(weights, None).points[1]
    for name, own in weights.layout.split(weights.vector).items():
        move = by_layer.layout.split(by_layer.vector)[name] - own
        assert float(move.norm()) == pytest.approx(float(own.norm()) if own.ndim > 1 else 0.0, rel=1e-9)
    assert weights.distance(plain) == pytest.approx(float(weights.vector.norm()), rel=1e-9)
    assert all(part.any() for part in plain.layout.split(plain.vector - weights.vector).values())


def test_random_directions_depend_on_the_seed_alone():
    weights, before = tw.Weights.of(ZOO["mlp"].module(1)), torch.get_rng_state()
    ends = [tw.Plane.around(weights, seed=seed).points[1].vector for seed in (0, 0, 1)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(tw.Plane.around(weights, seed=0).points[1].vector, ends[0])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_that_are_not_finite_have_no_place_in_a_plane(plane, points):
    bad = tw.average([points[0]])
    bad.vector[0] = float("nan")
    for ask in (plane.project, plane.distance):
        with pytest.raises(tw.ThalwegError, match="holds NaN or infinity, so it has diverged: leave it out"):
            ask(bad)


def test_line_of_a_plane_around_a_network_goes_through_it():
    weights = tw.Weights.of(ZOO["mlp"].module(1))
    plane = tw.Plane.around(weights, radius=0.5)
    line = plane.line()
    assert line.point(0.5).distance(weights) < 1e-9
    assert line.length() == pytest.approx(plane.width)
    assert (line.end.vector - weights.vector).allclose(0.5 * (plane.points[1].vector - weights.vector))


def test_plane_around_refuses_bad_input():
    weights = tw.Weights.of(ZOO["mlp"].module(1))
    with pytest.raises(tw.ThalwegError, match="normalise must be 'filter', 'layer' or None; got 'filters'"):
        tw.Plane.around(weights, "filters")
    with pytest.raises(tw.ThalwegError, match="radius must be above 0 and finite; got 0"):
        tw.Plane.around(weights, radius=0.0)
    with pytest.raises(tw.ThalwegError, match="the network in the middle must be Weights; got Sequential"):
        tw.Plane.around(ZOO["mlp"].module(1))
    with pytest.raises(tw.ThalwegError, match="those that it would change are all 0"):
        tw.Plane.around(tw.Weights.of(nn.LayerNorm(4)))
    with pytest.raises(tw.ThalwegError, match="a plane has two directions, and only one weight of this network"):
        tw.Plane.around(tw.Weights.of(nn.Linear(1, 1)))
