"""Triton kernels for curves: one pass over memory to compute phi(t), one to update the trained vectors."""

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

COMBINED, UPDATED = 512, 1024  # elements per program: the fastest measured, others are up to a third slower


@triton.jit
def _combine(points, coefficients, out, size, stride, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    back = tl.num_programs(0) - 1 - tl.program_id(0)  # from the end, which the previous update left in the cache
    here = back.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = here < size
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(COUNT):
        c = tl.load(coefficients + i).to(tl.float32)
        total += c * tl.load(points + i * stride.to(tl.int64) + here, inside)
    tl.store(out + here, total, inside)


@triton.jit
def _update(
    table,
    rates,
    point,
    vectors,
    momenta,
    stride,
    momentum,
    decay,
    COUNT: tl.constexpr,  # noqa: N803
    BENT: tl.constexpr,  # noqa: N803
    MOMENTUM: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = table + tl.program_id(0) * 3
    gradient = tl.load(row).to(tl.pointer_type(tl.float32))
    offset, count = tl.load(row + 1), tl.load(row + 2)
    if ALIGNED:
        gradient, offset = tl.multiple_of(gradient, 16), tl.multiple_of(offset, 4)
    k = tl.arange(0, BLOCK)
    inside = k < count
    here = offset + k
    phi = tl.load(point + here, inside)
    slope = tl.load(gradient + k, inside) + decay * phi
    lr = tl.load(rates).to(tl.float32)
    for i in tl.static_range(COUNT):
        there = i * stride.to(tl.int64) + here
        step = slope
        if BENT:
            step *= tl.load(rates + 2 + i).to(tl.float32)
        if MOMENTUM:
            step += momentum * tl.load(momenta + there, inside)
            tl.store(momenta + there, step, inside)
        before = phi
        if BENT:
            before = tl.load(vectors + there, inside)
        tl.store(vectors + there, before - lr * step, inside)


def combine(points: Tensor, coefficients: Tensor, out: Tensor) -> None:
    """out = coefficients @ points, for float32 points (count, size) and float64 coefficients."""
    count, size = points.shape
    grid = (triton.cdiv(size, COMBINED),)
    _combine[grid](points, coefficients, out, size, points.stride(0), count, COMBINED, num_warps=8)


class Update:
    """SGD with momentum and weight decay on all vectors in one pass, straight from the gradients of single parameters.

    It is meant to be captured: the addresses of the gradients are kept in a table, which `settle` fills after the
    capture.

    Args:
        vectors: (count, size), what is trained: the point itself, or the bends of a curve.
        momenta: Of the same shape and strides, or None.
        controls: The learning rate, then the curve's coefficients, ends included.
        sizes: Of the parameters, in their order in the vectors.
    """

    def __init__(
        self,
        vectors: Tensor,
        momenta: Tensor | None,
        controls: Tensor,
        momentum: float,
        decay: float,
        sizes: Sequence[int],
    ):
        self.vectors, self.momenta, self.controls = vectors, momenta, controls
        self.momentum, self.decay, self.sizes = momentum, decay, sizes
        self.tables: list[Tensor] = []  # one per capture that was settled
        self._prepare()

    def _prepare(self) -> None:
        """A table for the next capture, which must not allocate it itself: memory of a capture is reused."""
        most = sum(triton.cdiv(size, UPDATED) for size in self.sizes)
        self.table = torch.zeros(most, 3, dtype=torch.int64, device=self.vectors.device)
        self.rows: list[tuple[int, int, int]] = []

    def __call__(self, gradients: Sequence[Tensor | None], point: Tensor) -> None:
        self.rows = list(self._where(gradients))
        _update[(len(self.rows),)](
            self.table,
            self.controls,
            point,
            self.vectors,
            self.vectors if self.momenta is None else self.momenta,
            self.vectors.stride(0),
            self.momentum,
            self.decay,
            COUNT=len(self.vectors),
            BENT=self.vectors.data_ptr() != point.data_ptr(),
            MOMENTUM=self.momenta is not None,
            ALIGNED=all(address % 16 == 0 and offset % 4 == 0 for address, offset, _ in self.rows),
            BLOCK=UPDATED,
            num_warps=8,
        )

    def settle(self) -> None:
        if self.rows:
            self.table[: len(self.rows)].copy_(torch.tensor(self.rows))
            self.tables.append(self.table)
            self._prepare()

    def _where(self, gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, int, int]]:
        """Address, offset in the vectors and number of elements of each piece of a gradient."""
        offset = 0
        for gradient, size in zip(gradients, self.sizes, strict=True):
            if gradient is not None:
                for start in range(0, size, UPDATED):
                    yield gradient.data_ptr() + 4 * start, offset + start, min(UPDATED, size - start)
            offset += size
