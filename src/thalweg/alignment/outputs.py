"""Comparing what a network computes before and after a renumbering, in float64, away from zeros that hide errors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import torch
from torch import Tensor

CLOSE = 1e-9  # relative to how far outputs vary, in float64
ROUNDING = 1e-12  # relative to an output itself
STEEP = 1e-6  # relative to the size of a gradient; gradients round worse than outputs
FLAT = 1e-4  # of the largest gradient: smaller ones may be rounding
MASKED = 1e6  # times the typical size: outputs beyond it, such as logits set to -1e9, are no measure for the others


def apart(one: Sequence[Tensor], two: Sequence[Tensor], rounding: float = ROUNDING) -> float:
    """The largest difference of outputs, beyond rounding, relative to how far each varies; infinite where they are not
    alike.
    """
    one, two = [*_plain(one)], [*_plain(two)]
    if not same_finite(one, two):
        return inf
    pairs = [(mine.double(), yours.double(), mine.isfinite()) for mine, yours in zip(one, two, strict=True)]
    return max((_distance(mine[here], yours[here], rounding) for mine, yours, here in pairs if here.any()), default=0.0)


def _distance(one: Tensor, two: Tensor, rounding: float) -> float:
    """Numbers far larger than the others, such as masked logits, are measured by themselves alone."""
    sizes = one.abs()
    levels = (sizes[sizes > 0].log2() * 128).round().unique() / 128  # masked logits are many, but few different ones
    masked = sizes > (MASKED * levels.median().exp2() if levels.numel() else 0)
    usual = one[~masked]
    scale = float((usual - usual.median()).abs().max()) or float(usual.abs().max()) or 1.0
    beyond = ((one - two).abs() - rounding * sizes).clamp(min=0)
    return float((beyond / torch.where(masked, sizes, scale)).max())


def slopes_apart(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """The largest difference of gradients, each relative to its own size, or to a share of the largest where it is
    smaller; infinite where they are not alike.
    """
    if one.keys() != two.keys() or not same_finite([*one.values()], [*two.values()]):
        return inf
    sizes = {name: float(slope.nan_to_num().abs().max()) for name, slope in one.items() if slope.numel()}
    least = FLAT * max(sizes.values(), default=0.0) or 1.0
    return max(
        (float((one[name] - two[name]).nan_to_num().abs().max()) / max(sizes[name], least) for name in sizes),
        default=0.0,
    )


def weighted_sum(outputs: Sequence[Tensor]) -> Tensor:
    """A sum in which every number counts differently, of the outputs to which a gradient leads."""
    draw = torch.Generator().manual_seed(0)
    parts = [tensor for tensor in _plain(outputs) if tensor.requires_grad]
    return sum(
        [(part * torch.rand(part.shape, generator=draw, device="cpu").to(part)).nansum() for part in parts],
        torch.zeros((), device="cpu"),
    )


def finite(outputs: Sequence[Tensor]) -> bool:
    """Whether there is any finite number."""
    return any(bool(tensor.isfinite().any()) for tensor in _plain(outputs))


def _plain(outputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """Outputs as dense tensors of real numbers."""
    for tensor in outputs:
        if tensor.is_nested:
            yield from _plain(tensor.unbind())
            continue
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        yield torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def same_finite(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    there = [[tensor.isfinite() for tensor in _plain(outputs)] for outputs in (one, two)]
    return len(there[0]) == len(there[1]) and all(map(torch.equal, *there))


def moved(value: Tensor, far: float, generator: torch.Generator) -> Tensor:
    """Each entry times a number about 1, and shifted; infinity and NaN stay."""
    factor, shift = torch.rand(2, *value.shape, generator=generator, dtype=torch.float64, device="cpu").to(value.device)
    size = float(value[value.isfinite()].abs().mean().nan_to_num()) or 1.0
    return value * (1 + far * (factor - 0.5)) + far * 0.2 * size * shift
