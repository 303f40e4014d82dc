"""Triton kernels for curves: one pass over memory to compute phi(t), one to update the trained vectors by SGD, Adam or
AdamW.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import adam_scales

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
    row = table + tl.program_id(0) * 4
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


@triton.jit
def _update_adam(
    table,
    scales,
    settings,
    rates,
    point,
    vectors,
    means,
    squares,
    stride,
    parameters,
    penalty,
    COUNT: tl.constexpr,  # noqa: N803
    BENT: tl.constexpr,  # noqa: N803
    DECOUPLED: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = table + tl.program_id(0) * 4
    gradient = tl.load(row).to(tl.pointer_type(tl.float32))
    offset, count, number = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    if ALIGNED:
        gradient, offset = tl.multiple_of(gradient, 16), tl.multiple_of(offset, 4)
    k = tl.arange(0, BLOCK)
    inside = k < count
    here = offset + k
    phi = tl.load(point + here, inside)
    slope = tl.load(gradient + k, inside) + penalty * phi
    for i in tl.static_range(COUNT):
        there = i * stride.to(tl.int64) + here
        scale, own = scales + (i * parameters + number) * 3, settings + (i * parameters + number) * 5
        size, root, decay = tl.load(scale), tl.load(scale + 1), tl.load(scale + 2)
        first, second = tl.load(own + 1), tl.load(own + 2)  # in float64, in which 1 - beta is exact enough
        eps, coupled = tl.load(own + 3).to(tl.float32), tl.load(own + 4).to(tl.float32)
        before, step = phi, slope
        if BENT:
            before = tl.load(vectors + there, inside)
            step *= tl.load(rates + 2 + i).to(tl.float32)
        if DECOUPLED:
            after = before - decay * before
        else:
            after = before
            step += coupled * before
        mean, square = tl.load(means + there, inside), tl.load(squares + there, inside)
        mean += (step - mean) * (1 - first).to(tl.float32)
        square = square * second.to(tl.float32) + step * step * (1 - second).to(tl.float32)
        tl.store(means + there, mean, inside)
        tl.store(squares + there, square, inside)
        tl.store(vectors + there, after - size * mean / (tl.sqrt(square) * root + eps), inside)


def combine(points: Tensor, coefficients: Tensor, out: Tensor) -> None:
    """out = coefficients @ points, for float32 points (count, size) and float64 coefficients."""
    count, size = points.shape
    grid = (triton.cdiv(size, COMBINED),)
    _combine[grid](points, coefficients, out, size, points.stride(0), count, COMBINED, num_warps=8)


class _Update:
    """An update of all vectors in one pass, straight from the gradients of single parameters.

    It is meant to be captured: the addresses of the gradients are kept in a table, which `settle` fills after the
    capture.
    """

    def __init__(self, vectors: Tensor, controls: Tensor, sizes: Sequence[int]):
        self.vectors, self.controls, self.sizes = vectors, controls, sizes
        self.tables: list[tuple[Tensor, Tensor]] = []  # those of each capture that was settled
        self._prepare()

    def _prepare(self) -> None:
        """Tables for the next capture, which must not allocate them itself: memory of a capture is reused."""
        most = sum(triton.cdiv(size, UPDATED) for size in self.sizes)
        self.table = torch.zeros(most, 4, dtype=torch.int64, device=self.vectors.device)
        self.reached = torch.zeros(len(self.sizes), device=self.vectors.device)  # 1 for parameters with a gradient
        self.rows: list[tuple[int, int, int, int]] = []

    def __call__(self, gradients: Sequence[Tensor | None], point: Tensor) -> None:
        self.rows = list(self._where(gradients))
        aligned = all(address % 16 == 0 and offset % 4 == 0 for address, offset, *_ in self.rows)
        bent = self.vectors.data_ptr() != point.data_ptr()
        self._launch(point, {"COUNT": len(self.vectors), "BENT": bent, "ALIGNED": aligned, "BLOCK": UPDATED})

    def _launch(self, point: Tensor, constants: Mapping[str, int]) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        if self.rows:
            self.table[: len(self.rows)].copy_(torch.tensor(self.rows, device="cpu"))
            self.reached[sorted({number for *_, number in self.rows})] = 1.0
            self.tables.append((self.table, self.reached))
            self._prepare()

    def _where(self, gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, int, int, int]]:
        """Of each piece of a gradient: its address, offset in the vectors, number of elements, and parameter."""
        offset = 0
        for number, (gradient, size) in enumerate(zip(gradients, self.sizes, strict=True)):
            if gradient is not None:
                for start in range(0, size, UPDATED):
                    yield gradient.data_ptr() + 4 * start, offset + start, min(UPDATED, size - start), number
            offset += size


class Update(_Update):
    """SGD with momentum and weight decay.

    Args:
        vectors: (count, size), what is trained: the point itself, or the bends of a curve.
        momenta: Of the same shape and strides, or None.
        controls: The learning rate, then the curve's coefficients, ends included.
        momentum: The factor of `momenta`.
        decay: Weight decay at the point.
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
        self.momenta, self.momentum, self.decay = momenta, momentum, decay
        super().__init__(vectors, controls, sizes)

    def _launch(self, point: Tensor, constants: Mapping[str, int]) -> None:
        momenta = self.vectors if self.momenta is None else self.momenta
        _update[(len(self.rows),)](
            self.table,
            self.controls,
            point,
            self.vectors,
            momenta,
            self.vectors.stride(0),
            self.momentum,
            self.decay,
            MOMENTUM=self.momenta is not None,
            num_warps=8,
            **constants,
        )


class AdamUpdate(_Update):
    """Adam or AdamW, with settings of its own for each parameter.

    Args:
        vectors: As in `Update`, and so are `controls` and `sizes`.
        state: Both moments, of the shape and strides of the vectors, and the number of steps (count, parameters).
        settings: As in `adam_scales`.
        penalty: L2 penalty at the point.
        decoupled: Whether the weight decay in `settings` acts on the vectors (AdamW), or is added to their gradient.
    """

    def __init__(
        self,
        vectors: Tensor,
        state: tuple[Tensor, Tensor, Tensor],
        controls: Tensor,
        settings: Tensor,
        penalty: float,
        decoupled: bool,
        sizes: Sequence[int],
    ):
        self.means, self.squares, self.steps = state
        self.settings, self.penalty, self.decoupled = settings, penalty, decoupled
        super().__init__(vectors, controls, sizes)

    def _launch(self, point: Tensor, constants: Mapping[str, int]) -> None:
        self.steps += self.reached
        _update_adam[(len(self.rows),)](
            self.table,
            adam_scales(self.steps, self.settings, self.controls[0]),
            self.settings,
            self.controls,
            point,
            self.vectors,
            self.means,
            self.squares,
            self.vectors.stride(0),
            len(self.sizes),
            self.penalty,
            DECOUPLED=self.decoupled,
            num_warps=8,
            **constants,
        )
