"""Planes: two coordinates for the plane through three networks, of many or around one, and projections onto it."""

from collections.abc import Sequence
from math import hypot, isfinite
from typing import Literal

import torch
from torch import Tensor

from ..errors import ThalwegError, real_number, whole_number
from .curves import Curve, Segment
from .layout import Layout
from .weights import Weights, at, check_agreement, check_list, check_points, check_weights, combine, inner_products

FLATTEST = 1e-4  # least height of the third point over the line through the others, relative to its distance
Normalise = Literal["filter", "layer"] | None
Ranges = tuple[tuple[float, float], tuple[float, float]]


class Plane:
    """The plane through three networks, with Euclidean coordinates: the first at (0, 0), the second on the x axis.

    `Plane.fit` is the plane of the two main directions of many networks, `Plane.around` one of random directions around
    a single network.

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

    Attributes:
        points: The networks it was made from; around one, that network and where the two directions lead.
        corners: The coordinates of the networks.
        ranges: The smallest and largest x and y to be drawn, before a margin is added.
        margin: How far a scan goes beyond them by default, as a fraction of their extent.
        shares: Of a fitted plane, the share of the variance of its networks along x and along y; otherwise None.
    """

    margin = 0.2
    shares: tuple[float, float] | None = None

    def __init__(self, a: Weights, b: Weights, c: Weights):
        check_agreement(a, b, "the first point", "the second")
        check_agreement(a, c, "the first point", "the third")
        self.points: tuple[Weights, ...] = (a, b, c)
        self.basis = (a, b, c)  # every point of the plane is a weighted sum of these
        (uu, uw), (_, ww) = inner_products([point.vector for point in self.basis], a.layout).tolist()
        if not isfinite(uu + ww):
            raise ThalwegError(f"a plane needs finite weights, and {_not_finite(self.basis)}: leave that network out")
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

        self._set_corners((0.0, 0.0), (self.width, 0.0), (self.shift, self.height))

    def _set_corners(self, *corners: tuple[float, float]) -> None:
        self.corners = corners
        across, up = zip(*corners, strict=True)
        self.ranges: Ranges = (min(across), max(across)), (min(up), max(up))

    @classmethod
    def fit(cls, points: Sequence[Weights]) -> "Plane":
        """The plane of the two main directions (principal components) of many networks: the checkpoints of a training
        run, the members of a walk, the ends and bends of curves.

        The origin is their mean, x runs along the direction in which they vary most, from the first towards the last,
        and y along the next. Few networks lie in it: `distance` says how far each is away, `shares` how much of their
        variance the plane holds.

        Examples:
            >>> points = [Weights.of(torch.nn.Linear(4, 2)) for _ in range(5)]
            >>> plane = Plane.fit(points)
            >>> x, y = plane.project(points[3])
            >>> abs(x - plane.corners[3][0]) < 1e-5, 0 < sum(plane.shares) <= 1 + 1e-9
            (True, True)

        Args:
            points: At least three networks that do not lie on one line; they are gathered on the first one's device.
        """
        check_list(points, "a fitted plane", least=3)
        for place, point in enumerate(points, start=1):
            check_weights(point, f"point {place}")
        here = [point.to(points[0].vector.device) for point in points]
        check_points(here, "a fitted plane")
        total, variances, directions = _main_directions(here)
        mean = torch.full_like(directions[0], 1 / len(points))
        wide = torch.promote_types(points[0].layout.dtype, torch.float32)  # small directions, not rounded to bfloat16
        sums = (combine(here, (mean + own).tolist(), wide) for own in (torch.zeros_like(mean), *directions))
        plane = cls(*sums)
        plane.points, plane.shares = tuple(points), (variances[0] / total, variances[1] / total)
        lengths = torch.tensor(variances, dtype=torch.float64, device="cpu").sqrt()
        plane._set_corners(*((x, y) for x, y in (directions.T * lengths).tolist()))
        return plane

    @classmethod
    def around(cls, weights: Weights, normalise: Normalise = "filter", seed: int = 0, radius: float = 1.0) -> "Plane":
        """The plane of two random directions around one network, which is at (0, 0).

        With `normalise="filter"`, each filter of a direction has the norm of that filter in the network, so that
        networks of different scales can be compared. A filter is a row of a weight tensor, the weights of one output
        unit (of a transposed convolution, of one input channel); vectors, such as biases and the scales of
        normalisation layers, do not change (Li et al., 2018). A scan covers `radius` times a direction to either side.

        Examples:
            >>> network = Weights.of(torch.nn.Linear(4, 2))
            >>> plane = Plane.around(network, seed=1)
            >>> bool((plane.point(0, 0).vector == network.vector).all())
            True
            >>> abs(plane.width - float(network.tensors()["weight"].norm())) < 1e-5
            True

        Args:
            weights: The network in the middle.
            normalise: "filter"; "layer", for the norm of each weight tensor as a whole; or None, for directions with
                the norm of the whole network, in which biases change too.
            seed: Seed of the directions. The random state of the caller is left untouched.
            radius: How far to go to either side, in lengths of the directions.
        """
        check_weights(weights, "the network in the middle")
        if weights.layout.shards:
            raise ThalwegError(
                "random directions are drawn for whole networks, and this one is in shards: use Plane(a, b, c) of three"
            )
        if normalise not in ("filter", "layer", None):
            raise ThalwegError(f"normalise must be 'filter', 'layer' or None; got {normalise!r}")
        if not 0 < (radius := real_number(radius, "radius")) < float("inf"):
            raise ThalwegError(f"radius must be above 0 and finite; got {radius}")
        generator = torch.Generator().manual_seed(whole_number(seed, "seed") % 2**64)
        ends = [at(weights, weights.vector + _direction(weights, normalise, generator)) for _ in range(2)]
        if weights.distance(ends[0]) == 0:
            raise ThalwegError(
                "a random direction has the norms of the network's weights, and those that it would change are all 0: "
                "biases and other vectors change only with normalise=None"
            )
        if int((ends[0].vector != weights.vector).sum()) == 1:
            raise ThalwegError(
                "a plane has two directions, and only one weight of this network would change: scan a Segment to "
                "either side of it"
            )
        plane = cls(weights, *ends)
        plane.margin = 0.0
        plane._set_corners((0.0, 0.0))
        high = radius * weights.distance(ends[1])
        plane.ranges = (-radius * plane.width, radius * plane.width), (-high, high)
        return plane

    def line(self) -> Segment:
        """The straight line through the plane along the x axis, over its range: for `Plane.around`, the loss along one
        random direction, with the network at t = 1/2.

        Examples:
            >>> network = Weights.of(torch.nn.Linear(4, 2))
            >>> line = Plane.around(network).line()
            >>> line.point(0.5).distance(network) < 1e-5
            True
        """
        return Segment(*(self.point(x, 0.0) for x in self.ranges[0]))

    def __repr__(self) -> str:
        held = "" if self.shares is None else f", {sum(self.shares):.0%} of the variance of {len(self.points)} networks"
        wide, high = (stop - start for start, stop in self.ranges)
        return f"Plane({wide:.3g} wide, {high:.3g} high{held}, {self.points[0]!r})"

    @property
    def layout(self) -> Layout:
        """The names, shapes and order of the weights, the same for all points of the plane."""
        return self.points[0].layout

    def point(self, x: float, y: float) -> Weights:
        """The weights at (x, y); at the corners of `Plane(a, b, c)`, bit for bit those of the three networks.

        Args:
            x: The distance from the origin along the first axis.
            y: The distance from the origin along the second axis.
        """
        x, y = real_number(x, "x"), real_number(y, "y")
        third = y / self.height
        second = (x - third * self.shift) / self.width
        return combine(self.basis, [1 - second - third, second, third])

    def project(self, weights: Weights) -> tuple[float, float]:
        """The coordinates (x, y) of the point of the plane that is nearest to these weights.

        Args:
            weights: A network with the same layout, in the plane or outside it.
        """
        check_weights(weights, "a point to project")
        self.layout.check(weights.layout, "the plane", "the weights")
        a, b, c = (point.vector for point in self.basis)
        _, second, third = inner_products([a, weights.vector.to(a.device), b, c], self.layout)[0].tolist()
        if not isfinite(second + third):
            raise ThalwegError(
                "a point to project onto a plane holds NaN or infinity, so it has diverged: leave it out"
            )
        along = second / self.width
        return along, (third - along * self.shift) / self.height

    def path(self, curve: Curve, points: int = 121) -> list[tuple[float, float]]:
        """The projection of a curve onto the plane, as coordinates at equally spaced t.

        Args:
            curve: A curve between networks with the same layout.
            points: The number of values of t.
        """
        places = torch.tensor([self.project(point) for point in curve.points], dtype=torch.float64, device="cpu")
        weights = torch.stack([curve.checked_coefficients(t) for t in curve.spaced(points)])
        return [(x, y) for x, y in (weights @ places).tolist()]

    def path_distances(self, curve: Curve, points: int = 121) -> list[float]:
        """The distance of a curve from the plane at the points of its `path`.

        Args:
            curve: A curve between networks with the same layout.
            points: The number of values of t.
        """
        origin = self.basis[0].vector
        gram = inner_products([origin, *(point.vector.to(origin.device) for point in curve.points)], self.layout).cpu()
        places = torch.tensor([self.project(point) for point in curve.points], dtype=torch.float64, device="cpu")
        rest = gram - places @ places.T
        weights = torch.stack([curve.checked_coefficients(t) for t in curve.spaced(points)])
        return ((weights @ rest) * weights).sum(1).clamp_min(0).sqrt().tolist()

    def distance(self, weights: Weights) -> float:
        """The Euclidean distance of a network from the plane.

        Args:
            weights: A network with the same layout.
        """
        x, y = self.project(weights)
        origin = self.basis[0].vector
        whole = float(inner_products([origin, weights.vector.to(origin.device)], self.layout))
        return max(whole - hypot(x, y) ** 2, 0.0) ** 0.5


def _main_directions(points: Sequence[Weights]) -> tuple[float, list[float], Tensor]:
    """The squared distances from the mean summed over all points, those along the two main directions, and these
    directions as coefficients of the points, with those lengths.
    """
    inner = inner_products([point.vector for point in points], points[0].layout).cpu()
    gram = torch.nn.functional.pad(inner, (1, 0, 1, 0))
    centred = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    if not bool(centred.isfinite().all()):
        raise ThalwegError(f"a fitted plane needs finite weights, and {_not_finite(points)}: leave that network out")
    values, vectors = torch.linalg.eigh(centred)
    second, first = values[-2:].tolist()
    if second <= (FLATTEST**2) * first:
        raise ThalwegError(
            f"a fitted plane needs networks that do not lie on one line; these {len(points)} are up to "
            f"{max(first, 0.0) ** 0.5:.3g} from their mean along one direction and {max(second, 0.0) ** 0.5:.3g} along "
            "the next: add others"
        )
    directions = vectors[:, [-1, -2]].T
    signs = torch.where(directions[:, -1:] < directions[:, :1], -1.0, 1.0)  # from the first point towards the last
    return float(values.sum()), [first, second], directions * signs.double()


def _direction(weights: Weights, normalise: Normalise, generator: torch.Generator) -> Tensor:
    """Drawn on the CPU, so that it is the same on all devices."""
    drawn = torch.randn(weights.layout.size, generator=generator, dtype=torch.float32, device="cpu").to(weights.vector)
    if normalise is None:
        return drawn * (weights.vector.norm() / drawn.norm())
    parts = zip(*(weights.layout.split(vector).values() for vector in (drawn, weights.vector)), strict=True)
    return torch.cat([_scaled(part, like, normalise).reshape(-1) for part, like in parts])


def _scaled(part: Tensor, like: Tensor, normalise: Normalise) -> Tensor:
    """Scaled to the norms of `like`, by rows or as a whole; zero for biases and other vectors."""
    if like.ndim < 2:
        return torch.zeros_like(part)
    over = tuple(range(1 if normalise == "filter" else 0, like.ndim))
    own, norm = (torch.linalg.vector_norm(t, dim=over, keepdim=True) for t in (part, like))
    return part * (norm / own.clamp_min(torch.finfo(own.dtype).tiny))


def _not_finite(points: Sequence[Weights]) -> str:
    bad = (
        f"'{name}' of point {place} is not"
        for place, point in enumerate(points, start=1)
        for name, tensor in point.layout.split(point.vector).items()
        if not bool(tensor.isfinite().all())
    )
    return next(bad, "the distances between these overflow")
