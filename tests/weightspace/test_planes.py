"""Planes: three points to coordinates and back."""

import pytest
import torch
from zoo import ZOO

import thalweg as tw


@pytest.fixture(scope="module")
def points():
    return [tw.Weights.of(ZOO["conv_bn"].module(seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def plane(points):
    return tw.Plane(*points[:3])


def test_a_plane_returns_its_three_points_bit_for_bit(plane, points):
    for corner, point in zip(plane.corners, points, strict=False):
        assert torch.equal(plane.point(*corner).vector, point.vector)
        assert plane.project(point) == pytest.approx(corner, abs=1e-9)


def test_the_basis_is_the_papers(plane, points):
    w1, w2, w3 = (point.vector for point in points[:3])
    u = w2 - w1
    v = (w3 - w1) - (w3 - w1) @ u / (u @ u) * u
    expected = w1 + 0.7 * u / u.norm() - 1.3 * v / v.norm()
    assert torch.allclose(plane.point(0.7, -1.3).vector, expected, atol=1e-12)


def test_lengths_are_euclidean(plane):
    one, two = plane.point(0.5, 1.0), plane.point(3.5, 5.0)
    assert one.distance(two) == pytest.approx(5.0, rel=1e-9)


def test_projection_is_the_nearest_point(plane, points):
    x, y = plane.project(points[3])
    foot = plane.point(x, y)
    rest = points[3].vector - foot.vector
    for other in points[1:3]:
        assert abs(float(rest @ (other.vector - points[0].vector))) < 1e-9
    assert plane.distance(points[3]) == pytest.approx(float(rest.norm()), rel=1e-9)
    assert plane.distance(points[1]) == pytest.approx(0, abs=1e-6)


def test_a_curve_is_placed_point_by_point(plane, points):
    curve = tw.Bezier(points[0], points[1]).with_bends([points[3].vector])
    path = plane.path(curve, points=5)
    for t, place in zip(curve.spaced(5), path, strict=True):
        assert plane.project(curve.point(t)) == pytest.approx(place, abs=1e-9)


def test_all_three_points_must_agree(points):
    other = tw.Weights.of(ZOO["mlp"].module(1))
    for wrong in ((other, points[0], points[1]), (points[0], other, points[1]), (points[0], points[1], other)):
        with pytest.raises(tw.ThalwegError, match="do not describe the same network"):
            tw.Plane(*wrong)


def test_points_on_one_line_are_refused(points):
    a, b = points[:2]
    with pytest.raises(tw.ThalwegError, match="do not lie on one line"):
        tw.Plane(a, b, tw.average([a, b], [0.3, 0.7]))
    with pytest.raises(tw.ThalwegError, match="do not lie on one line"):
        tw.Plane(a, b, tw.average([a, b, points[2]], [0.3, 0.7 - 1e-6, 1e-6]))
    with pytest.raises(tw.ThalwegError, match="the first and the second are equal"):
        tw.Plane(a, a, b)
