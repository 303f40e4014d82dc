"""Curves against the paper's formulas and against plain vectors."""

import itertools
from math import asinh, comb, cos, pi, sin, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from zoo import ZOO

import thalweg as tw
from thalweg.weightspace.layout import Layout

TIMES = [0.0, 0.1, 1 / 3, 0.5, 0.77, 1.0]


class Parabola(tw.Curve):
    """Through all its points at t = 0, 1/2, 1."""

    def coefficients(self, t):
        return [(1 - t) * (1 - 2 * t), 4 * t * (1 - t), t * (2 * t - 1)]


def vector(*values: float) -> tw.Weights:
    module = nn.Linear(len(values), 1, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([values]))
    return tw.Weights.of(module)


def bent(kind, bends=1, seed=0):
    a, b = ZOO["mlp"].ends()
    g = torch.Generator().manual_seed(seed)
    return kind(a, b, bends).with_bends([torch.randn(a.layout.size, generator=g).double() for _ in range(bends)])


@given(t=st.floats(0, 1), bends=st.integers(1, 6))
def test_coefficients_add_up_to_one(t, bends):
    a, b = vector(0.0), vector(1.0)
    for curve in (tw.Segment(a, b), tw.PolyChain(a, b, bends), tw.Bezier(a, b, bends)):
        values = curve.coefficients(t)
        assert values.dtype == torch.float64
        assert abs(float(values.sum()) - 1) < 1e-14
        assert float(values.min()) >= 0
        assert abs(float(curve.derivatives(t).sum())) < 1e-12


@pytest.mark.parametrize("kind", [tw.PolyChain, tw.Bezier])
def test_curve_has_as_many_bends_as_float64_can_hold(kind):
    curve = kind(vector(0.0), vector(1.0), bends=1000)
    for t in TIMES:
        assert float(curve.point(t).vector) == pytest.approx(t, abs=1e-9)
        assert curve.speed(t) == pytest.approx(1)
    for bends in (1001, 2**31, 2**64):
        with pytest.raises(tw.ThalwegError, match=f"must be a whole number, at most 1,000; got {bends}"):
            kind(vector(0.0), vector(1.0), bends)


@pytest.mark.parametrize("bends", [1, 2, 3, 5])
@pytest.mark.parametrize("t", TIMES)
def test_bezier_is_the_formula(bends, t):
    curve = bent(tw.Bezier, bends)
    n = bends + 1
    expected = sum(w.vector * comb(n, i) * t**i * (1 - t) ** (n - i) for i, w in enumerate(curve.points))
    assert torch.allclose(curve.point(t).vector, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("bends", [1, 2, 3, 5])
@pytest.mark.parametrize("t", TIMES)
def test_chain_is_the_formula(bends, t):
    curve = bent(tw.PolyChain, bends)
    n = bends + 1
    i = next(i for i in range(n) if i / n <= t <= (i + 1) / n)
    within = (t - i / n) * n
    expected = (1 - within) * curve.points[i].vector + within * curve.points[i + 1].vector
    assert torch.allclose(curve.point(t).vector, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", [tw.Segment, tw.PolyChain, tw.Bezier, Parabola])
@pytest.mark.parametrize("name", ZOO)
def test_curve_ends_are_bit_exact(kind, name):
    a, b = ZOO[name].ends()
    a.vector[0] = -0.0
    curve = kind(a, b)
    for t, end in ((0, a), (1, b)):
        assert torch.equal(curve.point(t).vector.view(torch.int64), end.vector.view(torch.int64))


@pytest.mark.parametrize("kind", [tw.PolyChain, tw.Bezier])
@pytest.mark.parametrize("bends", [1, 2, 4])
def test_fresh_curves_are_the_straight_line(kind, bends):
    a, b = ZOO["mlp"].ends()
    curve, line = kind(a, b, bends), tw.Segment(a, b)
    for t in TIMES:
        assert torch.allclose(curve.point(t).vector, line.point(t).vector, rtol=1e-14, atol=1e-15)
    assert curve.length_ratio() == pytest.approx(1, rel=1e-12)


def test_points_of_a_curve_carry_no_statistics():
    a, b = ZOO["conv_bn"].ends()
    curve = tw.Bezier(a, b)
    assert not curve.point(0.0).has_statistics
    assert not curve.bends[0].has_statistics
    assert curve.start.has_statistics


@pytest.mark.parametrize("kind", [tw.PolyChain, tw.Bezier, Parabola])
@pytest.mark.parametrize("t", [0.0, 0.0003, 0.2, 0.31, 0.77, 0.9999, 1.0])
def test_curve_velocity_is_the_derivative(kind, t):
    curve = bent(kind)
    h = 1e-6
    low, high = max(t - h, 0), min(t + h, 1)
    numeric = (curve.point(high).vector - curve.point(low).vector) / (high - low)
    assert torch.allclose(curve.velocity(t), numeric, rtol=1e-4, atol=1e-4)
    assert curve.speed(t) == pytest.approx(float(curve.velocity(t).norm()), rel=1e-9)


def test_length_of_a_chain_is_the_sum_of_its_pieces():
    curve = bent(tw.PolyChain, 3)
    points = curve.points
    pieces = [one.distance(two) for one, two in itertools.pairwise(points)]
    assert curve.length() == pytest.approx(sum(pieces), rel=1e-13)
    assert curve.length(0.25, 0.75) == pytest.approx(sum(pieces[1:3]), rel=1e-13)
    assert curve.length(0.75, 0.125) == pytest.approx(pieces[0] / 2 + sum(pieces[1:3]), rel=1e-13)
    assert curve.length_ratio() == pytest.approx(sum(pieces) / points[0].distance(points[-1]), rel=1e-13)
    assert tw.Segment(points[0], points[-1]).length_ratio() == 1.0


@pytest.mark.parametrize("height", [0.01, 1.0, 30.0])
def test_length_of_a_bezier_parabola_has_a_closed_form(height):
    curve = tw.Bezier(vector(-1.0, 0.0), vector(1.0, 0.0)).with_bends([torch.tensor([0.0, 2 * height]).double()])
    slope = 2 * height  # y = height (1 - x^2)
    exact = sqrt(1 + slope**2) + asinh(slope) / slope
    assert curve.length() == pytest.approx(exact, rel=1e-9)
    assert curve.length(0, 0.5) == pytest.approx(exact / 2, rel=1e-9)
    assert curve.length(1, 0.5) == pytest.approx(exact / 2, rel=1e-9)


def test_length_of_a_custom_curve():
    curve = Parabola(vector(-1.0, 0.0), vector(1.0, 0.0)).with_bends([torch.tensor([0.0, 1.0]).double()])
    assert curve.length() == pytest.approx(sqrt(5) + asinh(2) / 2, rel=1e-8)


@pytest.mark.parametrize("kind", [tw.PolyChain, tw.Bezier])
def test_curve_spaced_by_length_is_even(kind):
    curve = bent(kind, 2, seed=3)
    times = curve.spaced(13, by="length")
    steps = [curve.length(a, b) for a, b in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert times[-1] == 1.0
    assert max(steps) - min(steps) < 1e-6 * curve.length()
    assert curve.spaced(5) == [0, 0.25, 0.5, 0.75, 1]


def test_curve_geometry_survives_large_weights_in_float32():
    """Raw inner products of weights around 1e3 would lose differences of 1e-3 entirely."""
    far = 1e3 + torch.randn(1000)
    a, b = (vector(*far).vector.float() for _ in range(2))
    b = b + 1e-3 * torch.randn(1000)
    layout = Layout.of(nn.Linear(1000, 1, bias=False))
    line = tw.Segment(tw.Weights(layout, a), tw.Weights(layout, b))
    assert line.length() == pytest.approx(float((b.double() - a.double()).norm()), rel=1e-12)


def test_curve_with_other_bends_has_another_length():
    curve = bent(tw.PolyChain)
    before = curve.length()
    assert curve.with_bends([2 * curve.bends[0].vector]).length() > 1.5 * before


class Waves(tw.Curve):
    """Coefficients that miss zero by a rounding error, and a setting of its own."""

    def __init__(self, a, b, height):
        super().__init__(a, b)
        self.height = height

    def coefficients(self, t):
        bump = self.height * sin(pi * t)
        return [cos(pi * t / 2) ** 2 - bump / 2, bump, sin(pi * t / 2) ** 2 - bump / 2]


def test_curve_forgives_rounding_of_t_at_the_ends(tmp_path):
    a, b = ZOO["mlp"].ends()
    curve = Waves(a, b, 0.3)
    assert torch.equal(curve.point(1.0).vector, b.vector)
    trained = tw.connect(ZOO["mlp"].module(1), curve, ZOO["mlp"].task, ZOO["mlp"].batches(), epochs=1, lr=0.1)
    trained.save(tmp_path / "w.safetensors")
    back = Waves.load(tmp_path / "w.safetensors")
    assert back.height == 0.3
    assert torch.equal(back.point(0.4).vector, trained.point(0.4).vector)


def test_chain_through_given_points_meets_them():
    points = [tw.Weights.of(ZOO["mlp"].module(seed)) for seed in range(4)]
    chain = tw.PolyChain.through(points)
    for i, point in enumerate(points):
        assert torch.allclose(chain.point(i / 3).vector, point.vector, atol=1e-14)


@pytest.mark.parametrize("kind", [tw.Segment, tw.PolyChain, tw.Bezier, Parabola])
def test_curve_save_and_load(kind, tmp_path):
    a, b = ZOO["conv_bn"].ends()
    curve = kind(a, b)
    curve.save(tmp_path / "c.safetensors")
    back = (Parabola if kind is Parabola else tw.Curve).load(tmp_path / "c.safetensors")
    assert type(back) is kind
    assert all(torch.equal(p.vector, q.vector) for p, q in zip(curve.points, back.points, strict=True))
    assert back.end.buffers.keys() == b.buffers.keys()
    assert torch.equal(back.point(0.3).vector, curve.point(0.3).vector)


def test_curve_load_names_the_class_of_a_custom_curve(tmp_path):
    Parabola(*ZOO["mlp"].ends()).save(tmp_path / "c.safetensors")
    with pytest.raises(tw.ThalwegError, match=r"a curve of kind .*\.Parabola: load it with Parabola\.load"):
        tw.Curve.load(tmp_path / "c.safetensors")


@pytest.mark.parametrize("bends", [0, -1, 1.5])
def test_curve_refuses_a_bad_number_of_bends(bends):
    with pytest.raises(tw.ThalwegError, match="at least 1"):
        tw.Bezier(*ZOO["mlp"].ends(), bends=bends)


@pytest.mark.parametrize("t", [-0.1, 1.1, float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["point", "coefficients", "velocity", "speed"])
def test_curve_refuses_t_outside_of_0_and_1(t, method):
    with pytest.raises(tw.ThalwegError, match="t must lie between 0"):
        getattr(tw.Bezier(*ZOO["mlp"].ends()), method)(t)


class Corner(tw.Curve):
    knots = (0.0, 0.3, 1.0)

    def coefficients(self, t):
        return [1 - t / 0.3, t / 0.3, 0.0] if t <= 0.3 else [0.0, (1 - t) / 0.7, (t - 0.3) / 0.7]


@pytest.mark.parametrize("knots", [(0.0, 0.3, 1.0), (0.6, 0.3)])
def test_custom_curve_has_derivatives_of_one_piece_up_to_its_corners(knots):
    curve = bent(Corner)
    curve.knots = knots
    first, second = (one.distance(two) for one, two in itertools.pairwise(curve.points))
    assert curve.length() == pytest.approx(first + second, rel=1e-9)
    for t, speed in ((0.0, first / 0.3), (0.2999, first / 0.3), (0.3001, second / 0.7), (1.0, second / 0.7)):
        assert curve.speed(t) == pytest.approx(speed, rel=1e-9)


class Broken(tw.Curve):
    def coefficients(self, t):
        return [1 - t, t, t]


def test_custom_curve_coefficients_are_checked():
    with pytest.raises(tw.ThalwegError, match="must give 3 numbers that add up to one"):
        Broken(*ZOO["mlp"].ends()).point(0.5)


class Bulge(tw.Curve):
    """Its attributes have defaults on the class."""

    power = 2.0
    names: tuple = ()

    def coefficients(self, t):
        middle = t**self.power * (1 - t)
        return [1 - t - middle, 2 * middle, t - middle]


def test_curve_load_keeps_attributes_with_a_default_on_the_class(tmp_path):
    curve = Bulge(*ZOO["mlp"].ends())
    curve.power, curve.knots = 3.5, (0.0, 0.25, 1.0)
    assert curve.gram is curve.gram  # a cached property is no attribute of the curve's own
    curve.save(tmp_path / "curve.safetensors")
    back = Bulge.load(tmp_path / "curve.safetensors")
    assert back.power == 3.5
    assert list(back.knots) == [0.0, 0.25, 1.0]
    assert torch.equal(back.point(0.3).vector, curve.point(0.3).vector)
    assert back.length() == curve.length()


def test_curve_load_never_replaces_methods_and_properties(tmp_path):
    curve = Bulge(*ZOO["mlp"].ends())
    vars(curve).update(coefficients="mine", bends="mine", layout="mine", gram="mine", power=3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thalweg.weightspace.curves._is_attribute", lambda kind, name: True)
        vars(curve).pop("gram")
        curve.save(tmp_path / "curve.safetensors")
    back = Bulge.load(tmp_path / "curve.safetensors")
    assert set(vars(back)) == {"points", "power"}
    assert back.point(0.5).vector.shape == curve.start.vector.shape
