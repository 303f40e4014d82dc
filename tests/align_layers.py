"""Further kinds of networks whose hidden units can be renumbered: layers and operations that few networks have."""

from itertools import pairwise
from typing import Any

import torch
from align_cases import AlignmentCase, Of, images, sequences, signals, text, tokens, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import thalweg as tw

TASK = tw.classification()


def norms() -> nn.Module:
    """By hand: unit length, root mean square, mean and variance, a quantile."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.normalize(net.one(x), dim=-1)
        x = net.two(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * net.gain)
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt() - x.quantile(0.3, dim=-1, keepdim=True)
        return net.three(x / torch.linalg.norm(x, dim=-1, keepdim=True))

    parts = {"one": nn.Linear(6, 10), "gain": nn.Parameter(torch.rand(10))}
    return Of(forward, **parts, two=nn.Linear(10, 8), three=nn.Linear(8, 4))


def group_norms() -> nn.Module:
    """Each group of channels has its own order."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip


def repeated_keys() -> nn.Module:
    """Grouped queries by repeated keys, rotary positions by complex numbers, a slope for each head."""

    def rotated(x: Tensor) -> Tensor:
        n, t, heads, _ = x.shape
        angles = torch.outer(torch.arange(t).to(x.dtype), torch.tensor([1.0, 0.1], dtype=x.dtype))
        turned = (
            torch.view_as_complex(x.reshape(n, t, heads, 2, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        return torch.view_as_real(turned).flatten(3)

    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.embedding(words)
        n, t, _ = x.shape
        q, k, v = (part(x).view(n, t, -1, 4) for part in (net.query, net.key, net.value))
        q, k = rotated(q), rotated(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k.repeat_interleave(3, 2), v.repeat_interleave(3, 2)))
        places = torch.arange(t)
        far = -0.1 * (places[:, None] - places).abs()
        mixed = ((q @ k.mT / 2 + far).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return net.head(x + net.output(mixed))

    shapes = {"query": (20, 24), "key": (20, 8), "value": (20, 8), "output": (24, 20), "head": (20, 9)}
    return Of(forward, embedding=nn.Embedding(9, 20), **{name: nn.Linear(*shape) for name, shape in shapes.items()})


def slopes() -> nn.Module:
    """ALiBi: the distance of positions counts with another constant for each head."""

    def forward(net: Any, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (part(x).view(n, t, 6, 3).transpose(1, 2) for part in (net.query, net.key, net.value))
        places = torch.arange(t)
        far = -(places[:, None] - places).abs() * torch.tensor([2.0, 1.0, 0.5, 0.25, 0.125, 0.0625])[:, None, None]
        return net.head(((q @ k.mT + far).softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))

    parts = {name: nn.Linear(6, 18) for name in ("query", "key", "value")}
    return Of(forward, **parts, head=nn.Linear(18, 4))


def relative() -> nn.Module:
    """Transformer-XL: scores by relative position, which a reshape shifts; also a slice that nobody uses."""

    def forward(net: Any, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        x = net.stem(x)
        x[..., -1]
        q, k, v = (part(x).view(n, t, 6, 3).transpose(1, 2) for part in (net.query, net.key, net.value))
        far = F.pad(q @ net.places.view(2 * t - 1, 6, 3).permute(1, 2, 0), (1, 0)).reshape(n, 6, 2 * t, t)
        far = far[:, :, 1:].reshape(n, 6, t, 2 * t - 1)[..., :t]
        return net.head(((q @ k.mT + far).softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))

    parts = {name: nn.Linear(10, 18) for name in ("query", "key", "value")}
    places = nn.Parameter(torch.randn(13, 18))
    return Of(forward, stem=nn.Linear(6, 10), **parts, places=places, head=nn.Linear(18, 4))


def projected() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        return net.head(net.body(net.embedding(words))[0][:, -1])

    body = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True, proj_size=5)
    return Of(forward, embedding=nn.Embedding(9, 6), body=body, head=nn.Linear(10, 4))


def handed_on() -> nn.Module:
    """The states of one LSTM are the first of another; those of its two layers have orders of their own."""

    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.embedding(words)
        return net.head(net.decoder(x, net.encoder(x)[1])[0][:, -1])

    bodies = {name: nn.LSTM(6, 8, num_layers=2, batch_first=True) for name in ("encoder", "decoder")}
    return Of(forward, embedding=nn.Embedding(9, 6), **bodies, head=nn.Linear(8, 4))


def cells() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.embedding(words)
        long, gated, plain = None, None, x.new_zeros(len(x), 5)
        for k in range(3):
            long = net.long(x[:, k], long)
            gated = net.gated(long[0], gated)
            plain = net.plain(gated, plain)
        return net.head(plain)

    parts = {"long": nn.LSTMCell(6, 8), "gated": nn.GRUCell(8, 7), "plain": nn.RNNCell(7, 5)}
    return Of(forward, embedding=nn.Embedding(9, 6), **parts, head=nn.Linear(5, 4))


def added_ways() -> nn.Module:
    """A GRU whose two ways are added."""

    def forward(net: Any, words: Tensor) -> Tensor:
        found, _ = net.body(net.embedding(words))
        return net.head(found.unflatten(2, (2, 8)).sum(2).max(1).values)

    body = nn.GRU(6, 8, num_layers=2, batch_first=True, bidirectional=True)
    return Of(forward, embedding=nn.Embedding(9, 6), body=body, head=nn.Linear(8, 4))


def last_states() -> nn.Module:
    """Last states by layer and direction, and all of them at once."""

    def forward(net: Any, words: Tensor) -> Tensor:
        x, n = net.embedding(words), len(words)
        top = net.one(x)[1].view(2, 2, n, 8)[-1]
        return net.head(torch.cat([top[0], top[1], net.two(x)[1].transpose(0, 1).reshape(n, -1)], 1))

    bodies = {name: nn.GRU(6, 8, num_layers=2, batch_first=True, bidirectional=True) for name in ("one", "two")}
    return Of(forward, embedding=nn.Embedding(9, 6), **bodies, head=nn.Linear(48, 4))


def ranked() -> nn.Module:
    """Every second unit is a gate; the largest of many are kept; pairs are sorted."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.one(x)
        x = net.two(x[:, ::2] * x[:, 1::2].sigmoid())
        x = net.three(x * (x >= x.topk(3, dim=1).values[:, -1:]))
        return net.four(x.view(-1, 5, 2).sort(2).values.flatten(1))

    shapes = {"one": (6, 16), "two": (8, 7), "three": (7, 10), "four": (10, 4)}
    return Of(forward, **{name: nn.Linear(*shape) for name, shape in shapes.items()})


def pixels() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.PixelShuffle(2), nn.ReflectionPad2d(1), nn.Conv2d(4, 6, 3),
        nn.ReLU(), nn.PixelUnshuffle(4), nn.Conv2d(96, 12, 1), nn.ChannelShuffle(2), nn.ReplicationPad2d(1),
        nn.Conv2d(12, 8, 3, padding=1, padding_mode="circular", groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4),
    )  # fmt: skip


def windows() -> nn.Module:
    """Patches as channels, of images and of sequences, and back."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.unfold(F.relu(net.one(x)), 2, stride=2)
        x = F.fold(F.relu(net.two(x.mT)).mT, (8, 8), 2, stride=2)
        x = net.three(x.flatten(2).unfold(2, 4, 4).transpose(1, 2).flatten(2))
        return net.head(F.relu(x).mean(1))

    parts = {"one": nn.Conv2d(3, 5, 3, padding=1), "two": nn.Linear(20, 24), "three": nn.Linear(24, 9)}
    return Of(forward, **parts, head=nn.Linear(9, 4))


def resampled() -> nn.Module:
    """Resizing in one dimension, and a spatial transformer."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.interpolate(F.relu(net.one(x)), scale_factor=2, mode="linear")
        x = F.relu(net.two(x)).unflatten(2, (4, -1))
        moved = F.affine_grid(net.places(x.mean((2, 3))).view(-1, 2, 3), x.shape, align_corners=False)
        x, places = F.max_pool2d(F.grid_sample(x, moved, align_corners=False), 2, return_indices=True)
        return net.head(F.max_unpool2d(x, places, 2).mean((2, 3)))

    parts = {"one": nn.Conv1d(2, 5, 3), "two": nn.Conv1d(5, 8, 5), "places": nn.Linear(8, 6)}
    return Of(forward, **parts, head=nn.Linear(8, 4))


def maxout() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.one(x).view(-1, 8, 3).max(2).values
        return net.three(net.two(x).view(-1, 2, 7).amax(1))

    return Of(forward, one=nn.Linear(6, 24), two=nn.Linear(8, 14), three=nn.Linear(7, 4))


def bags() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        one, two = net.bag(words), net.words(words).max(1).values
        far = torch.cdist(one, net.centres) + F.pairwise_distance(one, net.centres[0], keepdim=True)
        return F.cosine_similarity(net.mixed(one, two)[:, None], net.classes, dim=2) - far

    parts = {"bag": nn.EmbeddingBag(9, 6), "words": nn.Embedding(9, 5, max_norm=2.0), "mixed": nn.Bilinear(6, 5, 7)}
    return Of(forward, **parts, classes=nn.Parameter(torch.randn(4, 7)), centres=nn.Parameter(torch.randn(4, 6)))


def products() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = torch.einsum("bi,ij", x, net.one).relu().view(-1, 3, 4)
        x = torch.tensordot(x, net.two, dims=([1, 2], [0, 1])).tanh()
        return torch.inner(x, net.three) + torch.mv(net.three, net.shift) + torch.dot(net.shift, net.three[0])

    shapes = {"one": (6, 12), "two": (3, 4, 7), "three": (4, 7), "shift": (7,)}
    return Of(forward, **{name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()})


def graph() -> nn.Module:
    """Messages along edges, from and to nodes by their numbers, and by a sparse matrix."""

    def forward(net: Any, x: Tensor, edges: Tensor, near: Tensor) -> Tensor:
        start, end = edges
        x = F.relu(torch.sparse.mm(near, net.one(x)))
        x = net.two(x + torch.zeros_like(x).index_add(0, end, x.index_select(0, start)))
        at = end[:, None].expand(-1, x.shape[1])
        x = net.three(F.relu(x + torch.zeros_like(x).scatter_add(0, at, x.gather(0, at.roll(1, 0)))))
        hidden = torch.zeros_like(x)
        hidden[end] = x[start]
        return net.head(x + hidden)

    parts = {"one": nn.Linear(6, 8), "two": nn.Linear(8, 7), "three": nn.Linear(7, 5)}
    return Of(forward, **parts, head=nn.Linear(5, 4))


def nodes() -> Any:
    g = torch.Generator().manual_seed(0)
    near = torch.rand(5, 5, generator=g).round().to_sparse()
    return vectors()[0], torch.randint(5, (2, 9), generator=g), near, vectors()[1]


def over_time() -> nn.Module:
    """Sums and Fourier transforms along time, and the outputs of three branches as one."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.one(x).cumsum(1)
        x = torch.fft.irfft(torch.fft.rfft(x, dim=1) * net.filter[:, None], n=7, dim=1)
        x = x.sort(1, descending=True).values[:, 0]
        return net.head(torch.stack([F.relu(part(x)) for part in net.branches], dim=1).flatten(1))

    branches = nn.ModuleList(nn.Linear(8, 5) for _ in range(3))
    return Of(
        forward, one=nn.Linear(6, 8), filter=nn.Parameter(torch.rand(4)), branches=branches, head=nn.Linear(15, 4)
    )


def pointwise() -> nn.Module:
    """Functions that torch itself says work on each entry alone."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = torch.special.erfc(net.two(torch.exp2(torch.sin(3 * net.one(x)))))
        x = torch.logaddexp(torch.atan2(net.three(x), net.scale), torch.sinh(net.scale)).multiply(net.scale)
        return net.four(torch.logit(torch.frac(x).clip(0.1, 0.9)))

    shapes = {"one": (6, 8), "two": (8, 7), "three": (7, 5), "four": (5, 4)}
    parts = {name: nn.Linear(*shape) for name, shape in shapes.items()}
    return Of(forward, **parts, scale=nn.Parameter(torch.rand(5)))


def towers() -> nn.Module:
    return Of(lambda net, x: x, left=stack(6, 9, 5), right=stack(6, 7, 5))


def stack(*sizes: int) -> nn.Module:
    return nn.Sequential(*[layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())][:-1])


def shuffled_units() -> nn.Module:
    """ShuffleNet: half of the channels pass, and both halves are interleaved; the last halves have an odd size."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        for unit in net.units:
            one, two = x.chunk(2, dim=1)
            x = torch.cat([one, F.relu(unit(two))], 1).unflatten(1, (2, 6)).transpose(1, 2).flatten(1)
        return net.head(x)

    units = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    return Of(forward, stem=nn.Linear(6, 12), units=units, head=nn.Linear(12, 4))


def stacked_layers() -> nn.Module:
    """The weights of all layers in one tensor, and of all networks of an ensemble; shares of branches."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        for k in range(3):
            x = x + F.relu(x @ net.up[k] + net.shift[k]) @ net.down[k]
        shares = torch.stack([part(x) for part in net.branches], 1).softmax(1).transpose(1, 2).flatten(1)
        last = torch.func.vmap(lambda one, two: F.relu(x @ one) @ two)(net.first, net.second)
        return last.mean(0) + net.head(shares)

    shapes = {"up": (3, 8, 10), "shift": (3, 10), "down": (3, 10, 8), "first": (5, 8, 7), "second": (5, 7, 4)}
    branches = nn.ModuleList(nn.Linear(8, 5) for _ in range(2))
    parts = {name: nn.Parameter(torch.randn(shape) / 3) for name, shape in shapes.items()}
    return Of(forward, stem=nn.Linear(6, 8), branches=branches, head=nn.Linear(10, 4), **parts)


def masked_transformer() -> nn.Module:
    """Encoder and decoder with masks, of which torch looks whether they are causal."""

    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.embedding(words)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return net.decoder(x, net.encoder(x, mask), mask) @ net.embedding.weight.T

    one, two = (kind(12, 3, 10, batch_first=True) for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
    bodies = {"encoder": nn.TransformerEncoder(one, 1, enable_nested_tensor=False)}
    return Of(forward, embedding=nn.Embedding(9, 12), **bodies, decoder=nn.TransformerDecoder(two, 1))


def first_states() -> nn.Module:
    """A learned first state, and a convolution over positions whose channels are in groups."""

    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.embedding(words)
        x = x + F.gelu(net.positions(x.mT)[..., :-1]).mT
        return net.head(net.body(x, net.first.expand(-1, len(x), -1).contiguous())[0][:, -1])

    parts = {"positions": nn.Conv1d(12, 12, 4, padding=2, groups=3), "first": nn.Parameter(torch.randn(2, 1, 8))}
    body = nn.GRU(12, 8, num_layers=2, batch_first=True)
    return Of(forward, embedding=nn.Embedding(9, 12), **parts, body=body, head=nn.Linear(8, 4))


def routed() -> nn.Module:
    """Queries, keys and values packed inside each of few heads, and experts of which two are chosen for each token, so
    that they keep their order, but each has its own order inside.
    """

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        q, k, v = (part.transpose(1, 2) for part in net.packed(x).unflatten(-1, (3, 3, 4)).unbind(-2))
        x = x + net.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        weights, chosen = net.gate(x).softmax(-1).topk(2, dim=-1)
        shares = torch.zeros_like(net.gate(x)).scatter(-1, chosen, weights)
        one, two = torch.einsum("bti,eih->beth", x, net.up).chunk(2, dim=-1)
        return net.head((x + torch.einsum("beth,eho,bte->bto", F.silu(one) * two, net.down, shares)).mean(1))

    shapes = {"stem": (6, 10), "packed": (10, 36), "output": (12, 10), "gate": (10, 5), "head": (10, 4)}
    parts = {name: nn.Linear(*shape) for name, shape in shapes.items()}
    experts = {"up": nn.Parameter(torch.randn(5, 10, 14)), "down": nn.Parameter(torch.randn(5, 7, 10))}
    return Of(forward, **parts, **experts)


def modulated() -> nn.Module:
    """A convolution whose weights depend on a condition, scale and shift by it, and weights computed from others."""

    def forward(net: Any, x: Tensor, condition: Tensor) -> Tensor:
        style = F.relu(net.style(condition))
        weight = net.weight * net.scale(style)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.conv2d(F.relu(net.stem(x)).flatten(0, 1)[None], weight.flatten(0, 1), groups=len(condition))
        scale, shift = net.film(style).unflatten(1, (2, 7, 1, 1)).unbind(1)
        return net.head((net.norm(x.unflatten(1, (len(condition), 7))[0]) * scale + shift).mean((2, 3)))

    parts = {"style": weight_norm(nn.Linear(6, 5)), "scale": nn.Linear(5, 8), "stem": weight_norm(nn.Conv2d(3, 8, 3))}
    parts |= {"weight": nn.Parameter(torch.randn(7, 8, 3, 3)), "film": nn.Linear(5, 14)}
    return Of(forward, **parts, norm=nn.InstanceNorm2d(7), head=nn.Linear(7, 4))


def conditioned() -> Any:
    return images()[0], vectors()[0][:3], images()[1]


CONTRAST = tw.Task(
    TASK.loss, lambda net, batch: (net.left(batch[0]) @ net.right(batch[0]).T, torch.arange(len(batch[0])))
)
TRIPLET = tw.Task(
    lambda found, _: (found[1] - found[0] + 1).relu(),
    lambda net, batch: ([F.cosine_similarity(net(batch[0]), net(batch[0].roll(k, 0))) for k in (1, 2)], None),
)
LAYERS = {
    "norms by hand": AlignmentCase(norms, vectors, 2, 0.97),
    "group norm": AlignmentCase(group_norms, images, 3, 0.99),
    "repeated keys, complex rotary": AlignmentCase(repeated_keys, text, 4, 0.99, tw.language_modelling()),
    "ALiBi": AlignmentCase(slopes, sequences, 2, 0.98),
    "Transformer-XL": AlignmentCase(relative, sequences, 4, 0.98),
    "LSTM, projected": AlignmentCase(projected, tokens, 9, 0.99),
    "LSTM, state handed on": AlignmentCase(handed_on, tokens, 3, 0.99),
    "LSTM, GRU and RNN cells": AlignmentCase(cells, tokens, 4, 0.99),
    "GRU, both ways added": AlignmentCase(added_ways, tokens, 4, 0.99),
    "GRU, states of layers and ways": AlignmentCase(last_states, tokens, 9, 0.99),
    "interleaved gates, sorted units": AlignmentCase(ranked, vectors, 4, 0.98),
    "pixel and channel shuffle, padding": AlignmentCase(pixels, images, 6, 0.99),
    "unfold and fold": AlignmentCase(windows, images, 3, 0.98),
    "resizing, grid sample, unpooling": AlignmentCase(resampled, signals, 2, 0.95),
    "Maxout": AlignmentCase(maxout, vectors, 4, 0.98),
    "EmbeddingBag, Bilinear, distances": AlignmentCase(bags, tokens, 3, 0.98),
    "einsum, tensordot, inner": AlignmentCase(products, vectors, 3, 0.99),
    "graph network": AlignmentCase(graph, nodes, 3, 0.97),
    "cumsum, Fourier transform, stack": AlignmentCase(over_time, sequences, 4, 0.93),
    "pointwise functions": AlignmentCase(pointwise, vectors, 3, 0.97),
    "ShuffleNet": AlignmentCase(shuffled_units, vectors, 6, 0.98),
    "stacked layers, vmap": AlignmentCase(stacked_layers, vectors, 6, 0.99),
    "Transformer, masked": AlignmentCase(masked_transformer, text, 12, 0.99, tw.language_modelling()),
    "GRU, first states; grouped positions": AlignmentCase(first_states, tokens, 3, 0.99),
    "packed heads, experts by top-k": AlignmentCase(routed, sequences, 5, 0.99),
    "modulated convolution, weight norm": AlignmentCase(modulated, conditioned, 3, 0.99),
    "two towers, called apart": AlignmentCase(towers, vectors, 3, 0.99, CONTRAST),
    "triplets": AlignmentCase(lambda: stack(6, 9, 5), vectors, 2, 0.99, TRIPLET),
}
