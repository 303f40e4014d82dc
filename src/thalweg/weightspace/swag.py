"""SWAG: a Gaussian around the mean of several networks, from which further networks are drawn."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ThalwegError, real_number, whole_number
from ..store import files
from .layout import Layout
from .weights import Weights, at, check_agreement, check_weights, got, shared_frozen


class SWAG:
    """A Gaussian over weights: a mean, a diagonal, and a part of low rank from the last networks (Maddox et al., 2019).

    Examples:
        >>> import thalweg as tw
        >>> swag = tw.SWAG([tw.Weights.of(nn.Linear(4, 3)) for _ in range(5)])
        >>> ensemble = tw.Ensemble(nn.Linear(4, 3), swag.sample(8, seed=1))

        In a training loop of your own, collect as you go:

        >>> swag, model = tw.SWAG(rank=10), nn.Linear(4, 3)
        >>> for _ in range(3):
        ...     swag.collect(model)  # after an epoch, say
        >>> swag
        SWAG(3 networks, rank 3 of 10)

    With batch norm, samples need `update_bn` before they are used, as averages do.

    Args:
        members: Networks to begin with, such as `walk(...).members`.
        rank: How many of the last networks the part of low rank is made from, at least 2; 0 leaves it out. This
            many vectors of the network's size are held, and two more.

    Attributes:
        count: The number of networks collected.
    """

    def __init__(self, members: Sequence[Weights] = (), *, rank: int = 20):
        self.rank, self.count = whole_number(rank, "rank", least=0), 0
        if self.rank == 1:
            raise ThalwegError("one network has no deviation from its mean: give a rank of at least 2, or 0 for none")
        self._recent = deque[Tensor](maxlen=self.rank)
        if members and isinstance(members, str | Path | nn.Module | Mapping):  # whose parts would be collected
            raise ThalwegError(f"SWAG begins with a list of Weights such as walk(...).members; got {got(members)}")
        for member in members:
            self.collect(member)

    def __repr__(self) -> str:
        return f"SWAG({self.count} networks, rank {len(self._recent)} of {self.rank})"

    def collect(self, network: nn.Module | Weights) -> None:
        """Add a network to the mean and the covariance.

        Args:
            network: A module or its weights, of the same architecture as the first; it is copied to the CPU.
        """
        point = Weights.of(network) if isinstance(network, nn.Module) else network
        check_weights(point, "what SWAG collects")
        point = point.to("cpu").bare()
        if not bool(point.vector.isfinite().all()):
            raise ThalwegError(
                f"network {self.count + 1} of SWAG holds NaN or infinity, so it has diverged: leave it out"
            )
        vector = point.vector.to(torch.promote_types(point.layout.dtype, torch.float32), copy=True)
        if self.count == 0:
            self._like, self._mean, self._squares = point, torch.zeros_like(vector), torch.zeros_like(vector)
        check_agreement(self._like, point, "network 1 of SWAG", f"network {self.count + 1}")
        self.count += 1
        before = vector - self._mean
        self._mean.add_(before, alpha=1 / self.count)
        self._squares.addcmul_(before, vector - self._mean)  # about the mean, where plain squares would cancel
        self._recent.append(vector)

    @property
    def mean(self) -> Weights:
        """The mean of all networks, as `average` computes it: SWA's network."""
        self._need(1)
        return at(self._like, self._mean.to(self._like.layout.dtype, copy=True))

    @property
    def variance(self) -> Tensor:
        """The diagonal part: the variance of each weight over all networks, divided by their number."""
        self._need(1)
        return self._squares / self.count

    @property
    def deviations(self) -> Tensor:
        """The last networks minus the mean, one row each; the part of low rank is deviations.T @ deviations, divided
        by the number of rows minus one.
        """
        self._need(1)
        return self._rows() - self._mean

    def sample(self, n: int, scale: float = 0.5, seed: int = 0) -> list[Weights]:
        """Draw networks from the Gaussian.

        Args:
            n: How many.
            scale: A factor of the covariance, the sum of both parts. The default is that of the paper; 0 gives the
                mean.
            seed: Seed of the draws, which are the same for networks of any precision; more draws begin with the same.

        Returns:
            Weights on the CPU, without batch-norm statistics: `update_bn` adds them.
        """
        n, seed, scale = whole_number(n, "n", least=1), whole_number(seed, "seed"), real_number(scale, "scale")
        if not 0 <= scale < inf:
            raise ThalwegError(f"scale multiplies a covariance, so it must be at least 0 and finite; got {scale}")
        self._need(2)
        generator = torch.Generator().manual_seed(seed % 2**64)
        return [
            self._draw(generator, scale, {"by": "SWAG", "scale": scale, "seed": seed, "number": k}) for k in range(n)
        ]

    def _draw(self, generator: torch.Generator, scale: float, made: Mapping[str, Any]) -> Weights:
        drawn = torch.randn(
            len(self._mean), generator=generator, dtype=torch.float32, device="cpu"
        )  # the same for all dtypes
        shift = drawn.to(self._mean.dtype)
        shift.mul_(self._squares.div(self.count).sqrt_())
        factors = torch.randn(self.rank, generator=generator, dtype=torch.float64, device="cpu").tolist()
        for vector, factor in zip(self._recent, factors, strict=False):
            shift.add_(vector - self._mean, alpha=factor / (len(self._recent) - 1) ** 0.5)
        vector = self._mean.add(shift, alpha=scale**0.5)
        return replace(at(self._like, vector.to(self._like.layout.dtype)), made=made)

    def _rows(self) -> Tensor:
        return torch.stack([*self._recent]) if self._recent else self._mean.new_empty(0, len(self._mean))

    def _need(self, least: int) -> None:
        if self.count < least:
            raise ThalwegError(
                f"SWAG needs at least {least} collected networks for this, and has {self.count}: collect more, such as "
                "one per epoch"
            )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file.

        Args:
            path: The file to write.
        """
        self._need(1)
        parts = {"mean": self._mean, "squares": self._squares, "recent": self._rows()}
        others = {f"other {name}": tensor for name, tensor in {**self._like.frozen, **self._like.buffers}.items()}
        about = {"layout": self._like.layout.to_dict(), "count": self.count, "rank": self.rank}
        files.save_tensors(files.place(path), "swag", {**parts, **others}, about)

    @classmethod
    def load(cls, path: str | Path) -> "SWAG":
        """Read what `save` wrote; more networks can be collected.

        Args:
            path: The file, or a folder that holds it as `swag.safetensors`.
        """
        path = files.inside(path, "swag.safetensors")
        tensors, about = files.load_tensors(path, "swag")
        with files.reading(path):
            found, layout = cls(rank=about["rank"]), Layout.from_dict(about["layout"])
            others = {name.removeprefix("other "): t for name, t in tensors.items() if name.startswith("other ")}
            frozen = {name: shared_frozen(name, others.pop(name), copy=False) for name in layout.frozen}
            found._mean, found._squares, recent = (tensors[name] for name in ("mean", "squares", "recent"))
            found.count = whole_number(about["count"], "count", least=1)
            found._like = Weights(layout, found._mean.to(layout.dtype), others, frozen)
            found._recent.extend(recent)
            size, kind = (layout.size,), torch.promote_types(layout.dtype, torch.float32)
            whole_file = found._mean.shape == found._squares.shape == recent.shape[1:] == size
            kinds = {found._mean.dtype, found._squares.dtype, recent.dtype}
            if not whole_file or kinds != {kind} or len(recent) != min(found.count, found.rank):
                raise ValueError("its tensors do not fit its network")
        return found
