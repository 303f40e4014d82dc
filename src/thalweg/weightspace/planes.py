"""Planes: two coordinates for the plane through three networks, and projections onto it."""

from math import hypot

import torch

from ..errors import ThalwegError, number
from .curves import Curve
from .layout import Layout
from .weights import Weights, check_agreement, check_weights, combine, inner_products

FLATTEST = 1e-4  # least height of the third point over the line through the others, relative to its distance


class Plane:
    """The plane through three networks, with Euclidean coordinates: the first at (0, 0), the second on the x axis.

    Examples:
        >>> a, b, c = (Weights.of(torch.nn.Linear(4, 2)) for _ in range(3))
        >>> plane = Plane(a, b, c)
        >>> x, y = plane.project(b)
        >>> abs(x - a.distance(b)) < 1e-6, abs(y) < 1e-6
        (True, True)

    Args:
        a: The origin.
        b: The second network, on the x axis.
        c: The third, which gives the plane its other direction.
    """

    def __init__(self, a: Weights, b: Weights, c: Weights):
        check_agreement(a, b, "the first point", "the second")
        check_agreement(a, c, "the first point", "the third")
        self.points = (a, b, c)
        (uu, uw), (_, ww) = inner_products([point.vector for point in self.points]).tolist()
        if uu == 0:
            raise ThalwegError("a plane needs three different points, but the first and the second are equal")
        self.width = uu**0.5
        self.shift = uw / self.width
        self.height = max(ww - self.shift**2, 0.0) ** 0.5
        if self.height <= FLATTEST * max(ww, uu) ** 0.5:
            raise ThalwegError(
                f"a plane needs three points that do not lie on one line, but the third is only {self.height:.3g} away "
                f"from the line through the others, which are {self.width:.3g} apart: choose another third point"
            )

    def __repr__(self) -> str:
        return f"Plane({self.width:.3g} wide, {self.height:.3g} high, {self.points[0]!r})"

    @property
    def layout(self) -> Layout:
        return self.points[0].layout

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """The coordinates of the three networks."""
        return (0.0, 0.0), (self.width, 0.0), (self.shift, self.height)

    def point(self, x: float, y: float) -> Weights:
        """The weights at (x, y); at the corners bit for bit those of the three networks."""
        x, y = number(x, "x"), number(y, "y")
        third = y / self.height
        second = (x - third * self.shift) / self.width
        return combine(self.points, [1 - second - third, second, third])

    def project(self, weights: Weights) -> tuple[float, float]:
        """The coordinates of the nearest point of the plane."""
        check_weights(weights, "what is projected")
        self.layout.check(weights.layout, "the plane", "the weights")
        a, b, c = (point.vector for point in self.points)
        _, second, third = inner_products([a, weights.vector.to(a.device), b, c])[0].tolist()
        along = second / self.width
        return along, (third - along * self.shift) / self.height

    def path(self, curve: Curve, points: int = 121) -> list[tuple[float, float]]:
        """The projection of a curve onto the plane, as coordinates at equally spaced t."""
        places = torch.tensor([self.project(point) for point in curve.points], dtype=torch.float64)
        weights = torch.stack([curve.checked_coefficients(t) for t in curve.spaced(points)])
        return [(x, y) for x, y in (weights @ places).tolist()]

    def path_distances(self, curve: Curve, points: int = 121) -> list[float]:
        """The distance of a curve from the plane at the points of its `path`."""
        origin = self.points[0].vector
        gram = inner_products([origin, *(point.vector.to(origin.device) for point in curve.points)]).cpu()
        places = torch.tensor([self.project(point) for point in curve.points], dtype=torch.float64)
        rest = gram - places @ places.T
        weights = torch.stack([curve.checked_coefficients(t) for t in curve.spaced(points)])
        return ((weights @ rest) * weights).sum(1).clamp_min(0).sqrt().tolist()

    def distance(self, weights: Weights) -> float:
        """The distance of a point from the plane."""
        x, y = self.project(weights)
        whole = self.points[0].distance(weights.to(self.points[0].vector.device))
        return max(whole**2 - hypot(x, y) ** 2, 0.0) ** 0.5
