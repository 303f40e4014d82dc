"""Operations between two layers: which of them keep the units apart, by a rule or by what torch makes them of."""

import pytest
import torch
from align_zoo import Of
from torch import nn
from torch.nn import functional as F

import thalweg as tw

TASK, UNITS = tw.classification(), 6


def symmetries_with(operation):
    torch.manual_seed(0)
    net = Of(lambda net, x: net.two(operation(net.one(x))), one=nn.Linear(5, UNITS), two=nn.Linear(UNITS, 3))
    return tw.symmetries(net, TASK, (torch.randn(4, 5), torch.zeros(4).long()))


def wide(h, size=4):
    """Positions that are not units, in the last axis."""
    return h[..., None] * torch.arange(1.0, size + 1)


COMPOSED = {
    "addr": lambda h: torch.addr(torch.zeros(len(h), UNITS), torch.ones(len(h)), h[0]),
    "atleast_2d": torch.atleast_2d,
    "atleast_3d": lambda h: torch.atleast_3d(h)[..., 0],
    "binary_cross_entropy": lambda h: h * F.binary_cross_entropy(h.sigmoid(), h.sigmoid()),
    "binary_cross_entropy_with_logits": lambda h: h * F.binary_cross_entropy_with_logits(h, h.sigmoid()),
    "block_diag": lambda h: h + torch.block_diag(h, h)[: len(h), :UNITS],
    "broadcast_tensors": lambda h: torch.broadcast_tensors(h, h[:1])[1],
    "bucketize": lambda h: h * torch.bucketize(h, torch.tensor([0.0, 1.0])),
    "cartesian_prod": lambda h: h + torch.cartesian_prod(h[0], h[1]).sum(),
    "chain_matmul": lambda h: torch.linalg.multi_dot([h, h.T, h]),
    "column_stack": lambda h: torch.column_stack([h, h])[:, :UNITS] + h,
    "cosine_embedding_loss": lambda h: h * F.cosine_embedding_loss(h, h * 2, torch.ones(len(h))),
    "count_nonzero": lambda h: h * torch.count_nonzero(h, 1)[:, None],
    "cosine_similarity": lambda h: h * F.cosine_similarity(h, h.sin(), 1)[:, None],
    "cross": lambda h: torch.linalg.cross(wide(h, 3), wide(h.sin(), 3).cos()).sum(-1) + h,
    "cumulative_trapezoid": lambda h: torch.cumulative_trapezoid(wide(h)).sum(-1),
    "diag": lambda h: h @ torch.diag(h[0]),
    "diag_embed": lambda h: (h[:, None] @ torch.diag_embed(h))[:, 0],
    "diagonal": lambda h: torch.diagonal(h[:, :, None] * h[:, None], dim1=1, dim2=2),
    "diff": lambda h: torch.diff(h, dim=0, prepend=h[:1]),
    "dist": lambda h: h * torch.dist(h, h.sin()),
    "dsplit": lambda h: torch.dsplit(wide(h), 2)[0].sum(-1),
    "dstack": lambda h: torch.dstack([h, h]).sum(-1),
    "embedding": lambda h: F.embedding(torch.tensor([0, 2, 1, 3]), h),
    "eye": lambda h: h @ (h.T @ h + torch.eye(UNITS)),
    "fftshift": lambda h: torch.fft.fftshift(h, dim=0),
    "flipud": torch.flipud,
    "gradient": lambda h: torch.gradient(h, dim=0)[0],
    "hfft": lambda h: torch.fft.hfft(wide(h)).sum(-1),
    "huber_loss": lambda h: h * F.huber_loss(h, h * 2, reduction="none"),
    "index_fill": lambda h: h.index_fill(0, torch.tensor([0]), 0.0),
    "isin": lambda h: h * torch.isin(h.round(), torch.tensor([0.0])),
    "kl_div": lambda h: h * F.kl_div(h, h.abs(), reduction="sum"),
    "kron": lambda h: torch.kron(h, torch.ones(1, 2))[:, ::2],
    "layer_norm": lambda h: F.layer_norm(h, (UNITS,)),
    "linalg_matmul": lambda h: torch.linalg.matmul(h, h.T) @ h,
    "matrix_H": lambda h: h.H.H,
    "max of two": lambda h: torch.max(h, h.sin()),
    "meshgrid": lambda h: h + torch.meshgrid(h[0], h[1], indexing="ij")[1].sum(0),
    "native_layer_norm": lambda h: torch.native_layer_norm(h, [UNITS], None, None, 1e-5)[0],
    "prelu": lambda h: F.prelu(wide(h), torch.ones(UNITS) / 3).sum(-1),
    "renorm": lambda h: torch.renorm(h, 2, 0, 1.0),
    "rot90": lambda h: torch.rot90(wide(wide(h)), 1, [2, 3])[..., 0, 0],
    "searchsorted": lambda h: h * torch.searchsorted(torch.tensor([0.0, 1.0]), h),
    "select_scatter": lambda h: torch.select_scatter(h, h[0], 0, 1),
    "stack": lambda h: torch.stack([h, h.sin()], -1)[..., 0],
    "take_along_dim": lambda h: torch.take_along_dim(h, torch.zeros(1, UNITS).long(), 0) + h,
    "tensordot": lambda h: torch.tensordot(h, h, ([1], [1])) @ h,
    "trace": lambda h: h * torch.trace(h.T @ h),
    "trapezoid": lambda h: torch.trapezoid(wide(h)),
    "tril": lambda h: wide(wide(h)).tril().sum((-1, -2)),
    "triplet_margin_loss": lambda h: h * F.triplet_margin_loss(h, h * 2, h * 3),
    "triu": lambda h: wide(wide(h)).triu(1).sum((-1, -2)),
    "type_as": lambda h: h.type_as(h[:1]),
    "vecdot": lambda h: h * torch.linalg.vecdot(h, h)[:, None],
    "vsplit": lambda h: torch.vsplit(torch.cat([h, h]), 2)[0],
    "vstack": lambda h: torch.vstack([*h]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_operations_without_a_rule_are_followed_by_what_torch_makes_them_of(name):
    symmetries = symmetries_with(COMPOSED[name])
    assert [group.size for group in symmetries.groups.values()] == [UNITS], str(symmetries)
    assert not symmetries.dropped


MIXED = {
    "argmax": lambda h: h * h.argmax(1, keepdim=True),
    "cumulative_trapezoid": lambda h: torch.cumulative_trapezoid(F.pad(h, (1, 0))),
    "diag_embed beside the diagonal": lambda h: torch.diag_embed(h, 1)[:, :-1, :-1].sum(-1),
    "diagonal beside the diagonal": lambda h: h + F.pad(torch.diagonal(h[:, :, None] * h[:, None], 1, 1, 2), (0, 1)),
    "every fourth": lambda h: h * h[:, ::4].sum(1, keepdim=True),
    "fftshift": lambda h: torch.fft.fftshift(h, dim=1),
    "gradient": lambda h: torch.gradient(h, dim=1)[0],
    "index_fill": lambda h: h.index_fill(1, torch.tensor([0, 1, 2]), 0.0),
    "index_put by a mask": lambda h: h.index_put((torch.tensor([True, False, True, False]),), h[:2]),
    "qr": lambda h: h + torch.linalg.qr(h.T)[0].sum(1),
    "scatter to some": lambda h: h.scatter(0, torch.zeros(2, 3).long(), h[:2, :3]),
    "tril": lambda h: (h[:, :, None] * h[:, None]).tril().sum(-1),
    "masked_scatter": lambda h: h.masked_scatter(h > 0, torch.arange(24.0)),
}


@pytest.mark.parametrize("name", MIXED)
def test_operations_that_mix_units_pin_them(name):
    symmetries = symmetries_with(MIXED[name])
    assert all(group.size < UNITS for group in symmetries.groups.values()), str(symmetries)
    assert "two.weight[1]" not in {f"{tensor}[{k}]" for g in symmetries.groups.values() for tensor, k in g.axes}
    assert not symmetries.dropped  # by a rule, not by the proof alone


def test_units_that_a_composed_operation_leaves_out_are_pinned():
    """As with a slice: another call may use them."""
    one, two = nn.Linear(5, UNITS, bias=False), nn.Linear(UNITS // 2, 3)
    net = Of(lambda net, x: net.two(F.linear(x, torch.vsplit(net.one.weight, 2)[0])), one=one, two=two)
    symmetries = tw.symmetries(net, TASK, (torch.randn(4, 5), torch.zeros(4).long()))
    assert [group.size for group in symmetries.groups.values()] == [UNITS // 2]
