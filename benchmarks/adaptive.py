"""How many points adaptive scans need: on the stored profiles and planes of the paper, against equally spaced points.

    python benchmarks/adaptive.py

Each profile of 121 or 31 measured points in docs/paper stands for the loss along a curve, interpolated by monotone
cubics. Printed are the points that `points="adaptive"` would measure, the largest errors of max and int of the loss
over the data sets, as shares of how far it varies, and the least odd number of equally spaced points from which on both
errors are as small (0.0005 counts as exact): with trapezoids, as a scan computes int, and with the cubics of adaptive
scans. Then the same for the stored planes of 21 x 21 points, interpolated to 61 x 61: how many of these an adaptive
plane would measure, and how far the loss of the others is off in steps of the figure's contours, at most and for all
but one in a hundred. Needs no network; a few seconds on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator, RegularGridInterpolator

import thalweg as tw
from thalweg.evaluation.sampling import AlongCurve, OverPlane
from thalweg.results import corrections, grid
from thalweg.results.levels import LEVELS, Scale

PAPER = Path(__file__).parent.parent / "docs" / "paper"
DENSE = np.linspace(0, 1, 4001)
EXACT = 0.0005
SIDE = 61  # points along a side of a plane
Function = Callable[[np.ndarray], np.ndarray]


class Profile:
    """The losses on each data set and the length so far, as functions of t."""

    def __init__(self, path: Path, scan: tw.Scan):
        assert scan.t is not None
        assert scan.length is not None
        self.name = "/".join(path.relative_to(PAPER).with_suffix("").parts)
        self.losses = [PchipInterpolator(scan.t, entry["loss"]) for entry in scan.values.values()]
        self.length: Function = PchipInterpolator(scan.t, scan.length)
        self.chain = scan.name == "PolyChain"
        along = self.length(DENSE)
        values = [loss(DENSE) for loss in self.losses]
        self.true = [(v.max(), np.trapezoid(v, along) / np.ptp(along), np.ptp(v)) for v in values]

    def errors(self, t: np.ndarray, cubic: bool) -> tuple[float, float]:
        """The largest errors of max and int over the data sets."""
        along, cuts = self.length(t), np.searchsorted(t, self.knots if cubic else [])
        worst = (0.0, 0.0)
        for loss, (top, mean, spread) in zip(self.losses, self.true, strict=True):
            values = loss(t)
            found = (np.trapezoid(values, along) + corrections(values, along, cuts).sum()) / np.ptp(along)
            worst = max(worst[0], abs(values.max() - top) / spread), max(worst[1], abs(found - mean) / spread)
        return worst

    @property
    def knots(self) -> list[float]:
        return [0.0, 0.5, 1.0] if self.chain else [0.0, 1.0]

    def adaptive(self) -> np.ndarray:
        """The values of t that a scan would measure."""
        a, b = (tw.Weights.of(torch.nn.Linear(1, 1)) for _ in range(2))
        sampling = AlongCurve(_curve(self, a, b), 0.002)
        found: list[dict[str, dict[str, float]]] = []
        while new := sampling.more(found):
            found += [{str(k): {"loss": float(f(at["t"]))} for k, f in enumerate(self.losses)} for at in new]
        return sampling.arranged(found)[0]["t"]

    def even(self, limits: Sequence[float], cubic: bool) -> int:
        """The least odd number of equally spaced points from which on all are as good."""
        worse = [
            count
            for count in range(3, 242, 2)
            if any(e > m for e, m in zip(self.errors(np.linspace(0, 1, count), cubic), limits, strict=True))
        ]
        return max(worse, default=1) + 2


def _curve(profile: Profile, a: tw.Weights, b: tw.Weights) -> tw.Curve:
    """Any curve with the knots and the lengths of a profile."""

    class Known(tw.PolyChain if profile.chain else tw.Segment):  # type: ignore[misc]
        def length(self, start: float = 0.0, stop: float = 1.0) -> float:
            return float(profile.length(np.array(stop)) - profile.length(np.array(start)))

    return Known(a, b)


def profiles() -> Iterator[Profile]:
    """Each line and curve once, though several entries of the paper measure the same."""
    seen = set()
    for path in sorted(PAPER.glob("*/*/*.json")):
        if '"kind": "curve"' in path.read_text()[:2000] and "path" not in path.stem:
            scan = tw.Scan.load(path)
            first = next(iter(scan.values.values()))["loss"].tobytes()
            if scan.length_ratio is not None and first not in seen:
                seen.add(first)
                yield Profile(path, scan)


def measured() -> list[tuple[str, int, float, float, int, int]]:
    """For each profile: adaptive points, their errors of max and int, and equally spaced points that are as good."""
    rows = []
    for profile in profiles():
        t = profile.adaptive()
        errors = profile.errors(t, cubic=True)
        limits = [max(error, EXACT) for error in errors]
        even = [profile.even(limits, cubic) for cubic in (False, True)]
        rows.append((profile.name, len(t), *errors, *even))
    return rows


def over_plane(scan: tw.Scan) -> tuple[int, float, float]:
    """Points that an adaptive plane would measure, and errors of the others in steps of contours."""
    assert scan.x is not None
    assert scan.y is not None
    x, y = (np.linspace(side[0], side[-1], SIDE) for side in (scan.x, scan.y))
    fine = tuple(np.meshgrid(y, x, indexing="ij"))
    true = {
        name: RegularGridInterpolator((scan.y, scan.x), entry["loss"], "pchip")(fine)
        for name, entry in scan.values.items()
    }
    a, b, c = (tw.Weights.of(torch.nn.Linear(1, 1)) for _ in range(3))
    sampling, found = OverPlane(tw.Plane(a, b, c), {"x": x, "y": y}), list[dict[str, dict[str, float]]]()
    while new := sampling.more(found):
        places = [(np.abs(y - at["y"]).argmin(), np.abs(x - at["x"]).argmin()) for at in new]
        found += [{name: {"loss": float(loss[place])} for name, loss in true.items()} for place in places]
    _, values = sampling.arranged(found)
    errors = []
    for name, loss in true.items():
        scale = Scale.over([loss])
        one, two = (np.clip(scale.share(each), 0, 1) for each in (values[name]["loss"], loss))
        errors.append(np.abs(one - two).ravel() * (LEVELS - 1))
    return len(found), float(np.max(errors)), float(np.quantile(errors, 0.99))


def planes() -> dict[str, tuple[int, float, float]]:
    paths = sorted(PAPER.glob("*/planes/plane-*.json"))
    return {f"{path.parts[-3]}/{path.stem}": over_plane(tw.Scan.load(path)) for path in paths}


def main() -> None:
    rows = measured()
    header = ["", "adaptive", "error of max", "of int", "equally spaced", "with cubics"]
    texts = [[name, str(n), f"{top:.4f}", f"{mean:.4f}", str(a), str(b)] for name, n, top, mean, a, b in rows]
    sums = [sum(row[k] for row in rows) for k in (1, 4, 5)]
    half = sum(2 * row[1] <= row[4] for row in rows)
    print(grid(header, [*texts, ["all", str(sums[0]), "", "", str(sums[1]), str(sums[2])]]))
    print(f"half of the points or fewer: {half} of {len(rows)} profiles\n")
    found = planes()
    texts = [
        [name, str(n), f"{n / SIDE**2:.0%}", f"{most:.2f}", f"{usual:.2f}"] for name, (n, most, usual) in found.items()
    ]
    all_points = sum(n for n, _, _ in found.values())
    share = f"{all_points / SIDE**2 / len(found):.0%}"
    print(
        grid(
            [f"{SIDE} x {SIDE}", "adaptive", "of all", "largest error", "99 %"],
            [*texts, ["all", str(all_points), share, "", ""]],
        )
    )


if __name__ == "__main__":
    main()
