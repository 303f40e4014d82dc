"""Kinds of networks whose hidden units can be renumbered, small, with what is found in each."""

from functools import cache
from typing import Any

import torch
from align_cases import AlignmentCase, Of, images, pairs, sequences, signals, text, tokens, vectors, volumes
from align_layers import LAYERS
from torch import Tensor, nn
from torch.nn import functional as F

import thalweg as tw
from thalweg.alignment.terms import sized


def basic_block(before: int, after: int, stride: int) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        inner = net.bn2(net.conv2(F.relu(net.bn1(net.conv1(x)))))
        return F.relu(inner + net.shortcut(x))

    shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()
    parts = {"conv1": nn.Conv2d(before, after, 3, stride, 1, bias=False), "bn1": nn.BatchNorm2d(after)}
    parts |= {"conv2": nn.Conv2d(after, after, 3, 1, 1, bias=False), "bn2": nn.BatchNorm2d(after)}
    return Of(forward, shortcut=shortcut, **parts)


def padded_shortcut() -> nn.Module:
    """A residual network without parameters in its shortcut, whose new channels are zeros."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.relu(net.stem(x))
        x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3)) + net.two(F.relu(net.one(x)))
        return net.head(F.relu(x).mean((2, 3)))

    parts = {"stem": nn.Conv2d(3, 6, 3), "one": nn.Conv2d(6, 8, 3, 2, 1), "two": nn.Conv2d(8, 12, 3, 1, 1)}
    return Of(forward, **parts, head=nn.Linear(12, 4))


def inverted_residual() -> nn.Module:
    """Expansion, depthwise convolution, squeeze-excite and projection."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        inner = F.silu(net.depthwise(F.silu(net.expand(x))))
        gate = torch.sigmoid(net.excite(F.silu(net.squeeze(F.adaptive_avg_pool2d(inner, 1)))))
        return net.head((x + net.project(inner * gate)).flatten(2).mean(-1))

    parts = {"stem": nn.Conv2d(3, 6, 3, 1, 1), "expand": nn.Conv2d(6, 12, 1), "squeeze": nn.Conv2d(12, 4, 1)}
    parts |= {"depthwise": nn.Conv2d(12, 12, 3, 1, 1, groups=12), "excite": nn.Conv2d(4, 12, 1)}
    return Of(forward, **parts, project=nn.Conv2d(12, 6, 1), head=nn.Linear(6, 4))


def convnext() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        inner = net.norm(net.depthwise(x).permute(0, 2, 3, 1))
        inner = net.scale * net.two(F.gelu(net.one(inner)))
        return net.head((x + inner.permute(0, 3, 1, 2)).mean((-2, -1)))

    parts = {"stem": nn.Conv2d(3, 6, 2, 2), "depthwise": nn.Conv2d(6, 6, 3, 1, 1, groups=6), "norm": nn.LayerNorm(6)}
    parts |= {"one": nn.Linear(6, 24), "two": nn.Linear(24, 6), "scale": nn.Parameter(torch.full((6,), 1e-6))}
    return Of(forward, **parts, head=nn.Linear(6, 4))


def grouped() -> nn.Module:
    """ResNeXt: a convolution in groups, between groups and inside them."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4),
    )  # fmt: skip


def dense() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        for layer in net.layers:
            x = torch.cat([x, layer(x)], 1)
        return net.head(F.avg_pool2d(x, 8).flatten(1))

    layers = [nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 4, 3, 1, 1, bias=False)) for n in (6, 10, 14)]
    return Of(forward, stem=nn.Conv2d(3, 6, 3, 1, 1), layers=nn.ModuleList(layers), head=nn.Linear(18, 4))


def unet() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        first = F.relu(net.down1(x))
        second = F.relu(net.down2(F.max_pool2d(first, 2)))
        up = F.relu(net.up(second))
        near = F.interpolate(second, scale_factor=2.0)
        return net.out(F.relu(net.merge(torch.cat([first, up, near], dim=1))))

    parts = {"down1": nn.Conv2d(3, 6, 3, 1, 1), "down2": nn.Conv2d(6, 8, 3, 1, 1)}
    parts |= {"up": nn.ConvTranspose2d(8, 5, 2, 2), "merge": nn.Conv2d(19, 7, 3, 1, 1), "out": nn.Conv2d(7, 4, 1)}
    return Of(forward, **parts)


def siamese() -> nn.Module:
    def forward(net: Any, left: Tensor, right: Tensor) -> Tensor:
        return net.head((net.body(left) - net.body(right)).abs())

    body = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh())
    return Of(forward, body=body, head=nn.Linear(8, 4))


def transformer(**options: Any) -> nn.Module:
    def forward(net: Any, tokens: Tensor) -> Tensor:
        return net.head(net.body(net.embedding(tokens) + net.place).mean(1))

    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, **options)
    parts = {"embedding": nn.Embedding(9, 12), "place": nn.Parameter(torch.randn(1, 7, 12))}
    return Of(forward, **parts, body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), head=nn.Linear(12, 4))


def vit() -> nn.Module:
    """With one packed projection that is unbound, a class token, and positions."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([net.token.expand(len(x), -1, -1), x], dim=1) + net.place
        n, t, c = x.shape
        q, k, v = net.qkv(net.norm1(x)).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        x = x + net.project(mixed)
        x = x + net.mlp(net.norm2(x))
        return net.head(x[:, 0])

    parts = {"patch": nn.Conv2d(3, 12, 4, 4), "token": nn.Parameter(torch.randn(1, 1, 12)), "norm1": nn.LayerNorm(12)}
    parts |= {"place": nn.Parameter(torch.randn(1, 5, 12)), "qkv": nn.Linear(12, 36), "project": nn.Linear(12, 12)}
    mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
    return Of(forward, **parts, norm2=nn.LayerNorm(12), mlp=mlp, head=nn.Linear(12, 4))


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return x * torch.cat([angles.cos()] * 2, -1) + torch.cat([-two, one], -1) * torch.cat([angles.sin()] * 2, -1)


def llama() -> nn.Module:
    """Grouped queries, rotary positions, RMS norms in float32, a gated MLP, no biases."""

    def forward(net: Any, tokens: Tensor) -> Tensor:
        x = net.embedding(tokens)
        n, t, c = x.shape
        angles = torch.outer(torch.arange(t).to(x.dtype), torch.tensor([1.0, 0.1], dtype=x.dtype))
        h = x.float()
        h = net.gain * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q, k, v = (part(h).view(n, t, -1, 4).transpose(1, 2) for part in (net.query, net.key, net.value))
        q, k = rotate(q, angles), rotate(k, angles)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + net.output(mixed.transpose(1, 2).reshape(n, t, c))
        h = net.norm(x)
        return net.head(x + net.down(F.silu(net.gate(h)) * net.up(h)))

    shapes = {"query": (24, 24), "key": (24, 8), "value": (24, 8), "output": (24, 24)}
    shapes |= {"gate": (24, 32), "up": (24, 32), "down": (32, 24), "head": (24, 9)}
    parts = {name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
    gain = nn.Parameter(torch.rand(24))
    return Of(forward, embedding=nn.Embedding(9, 24), gain=gain, norm=nn.RMSNorm(24), **parts)


def gpt() -> nn.Module:
    """Attention by hand with a mask; the output layer is tied to the embedding."""

    def forward(net: Any, tokens: Tensor) -> Tensor:
        n, t = tokens.shape
        x = net.embedding(tokens) + net.place(torch.arange(t))
        q, k, v = net.packed(net.norm1(x)).split(12, dim=2)
        q, k, v = (part.view(n, t, 3, 4).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / 2
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + net.project(mixed.transpose(1, 2).contiguous().view(n, t, 12))
        return F.linear(net.norm3(x + net.mlp(net.norm2(x))), net.embedding.weight)

    mlp = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))
    norms = {f"norm{k}": nn.LayerNorm(12) for k in (1, 2, 3)}
    parts = {"embedding": nn.Embedding(9, 12), "place": nn.Embedding(7, 12), "packed": nn.Linear(12, 36)}
    return Of(forward, **parts, project=nn.Linear(12, 12), mlp=mlp, **norms)


def cross_attention() -> nn.Module:
    """Learned queries over the input, by a packed module with keys and values of another width."""

    def forward(net: Any, x: Tensor) -> Tensor:
        found, _ = net.attention(net.queries.expand(len(x), -1, -1), x, x, need_weights=False)
        return net.head(F.relu(found).flatten(1))

    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    return Of(forward, queries=nn.Parameter(torch.randn(1, 3, 8)), attention=attention, head=nn.Linear(24, 4))


def mixer() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.patch(x).flatten(2)
        x = x + net.tokens(x)
        x = x.transpose(1, 2)
        return net.head((x + net.channels(net.norm(x))).mean(1))

    tokens = nn.Sequential(nn.Linear(4, 10), nn.GELU(), nn.Linear(10, 4))
    channels = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))
    parts = {"patch": nn.Conv2d(3, 12, 4, 4), "tokens": tokens, "channels": channels, "norm": nn.LayerNorm(12)}
    return Of(forward, **parts, head=nn.Linear(12, 4))


def swin() -> nn.Module:
    """Attention in shifted windows, with a bias by relative position."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.patch(x).permute(0, 2, 3, 1)
        n, c = len(x), 8
        parts = x.roll((-1, -1), (1, 2)).view(n, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = net.qkv(parts).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = net.table[net.offsets.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        mixed = ((q @ k.transpose(-2, -1) + bias).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, c)
        y = net.project(mixed).view(n, 2, 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, 4, 4, c).roll((1, 1), (1, 2))
        x = net.norm(x + y)
        merged = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return net.head(F.gelu(net.reduce(merged)).mean((1, 2)))

    places = torch.tensor([[i, j] for i in (0, 1) for j in (0, 1)])
    shift = places[:, None] - places[None] + 1
    net = Of(forward, patch=nn.Conv2d(3, 8, 2, 2), qkv=nn.Linear(8, 24), project=nn.Linear(8, 8), norm=nn.LayerNorm(8))
    net.table, net.reduce, net.head = nn.Parameter(torch.randn(9, 2)), nn.Linear(32, 10), nn.Linear(10, 4)
    net.register_buffer("offsets", shift[..., 0] * 3 + shift[..., 1])
    return net


def recurrent(kind: Any, last: bool = False, **options: Any) -> nn.Module:
    def forward(net: Any, tokens: Tensor) -> Tensor:
        found, state = net.body(net.embedding(tokens))
        if last:
            return net.head((state[0] if isinstance(state, tuple) else state)[-1])
        return net.head(found[:, -1])

    ways = 2 if options.get("bidirectional") else 1
    body = kind(6, 8, num_layers=2, batch_first=True, **options)
    return Of(forward, embedding=nn.Embedding(9, 6), body=body, head=nn.Linear(8 * ways, 4))


def einsum_attention() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btc,chd->bthd", x, w) for w in (net.q, net.k, net.v))
        weights = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        return net.head(torch.einsum("bhts,bshd,hdc->btc", weights, v, net.o).relu().amax(1))

    parts = {name: nn.Parameter(torch.randn(6, 3, 5) / 3) for name in "qkv"}
    return Of(forward, **parts, o=nn.Parameter(torch.randn(3, 5, 10) / 3), head=nn.Linear(10, 4))


def gated() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.GLU(), nn.Linear(10, 16), nn.PReLU(16), nn.Linear(16, 4))


def experts() -> nn.Module:
    """A soft mixture of experts, whose gate is a softmax over hidden units."""

    def forward(net: Any, x: Tensor) -> Tensor:
        hidden = torch.einsum("ni,eih->neh", x, net.first).relu()
        return torch.einsum("neh,eho,ne->no", hidden, net.second, net.gate(x).softmax(-1))

    parts = {"first": nn.Parameter(torch.randn(5, 6, 8)), "second": nn.Parameter(torch.randn(5, 8, 4))}
    return Of(forward, **parts, gate=nn.Linear(6, 5))


def cumulative() -> nn.Module:
    """With an operation that mixes its units by their order."""
    return Of(
        lambda net, x: net.three(F.relu(net.two(net.one(x).cumsum(1)))),
        one=nn.Linear(6, 8), two=nn.Linear(8, 10), three=nn.Linear(10, 4),
    )  # fmt: skip


def shuffled() -> nn.Module:
    """Channel shuffle between grouped convolutions."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.relu(net.one(x))
        n, _, h, w = x.shape
        x = x.view(n, 2, 6, h, w).transpose(1, 2).reshape(n, 12, h, w)
        return net.head(F.relu(net.two(x)).mean((2, 3)))

    return Of(forward, one=nn.Conv2d(3, 12, 3), two=nn.Conv2d(12, 16, 3, groups=2), head=nn.Linear(16, 4))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 4),
    )  # fmt: skip


def batch_norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), basic_block(6, 6, 1), basic_block(6, 8, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def temporal() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, dilation=2), nn.LeakyReLU(), nn.Conv1d(6, 8, 3), nn.InstanceNorm1d(8, affine=True),
        nn.ELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def volumetric() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.SiLU(), nn.MaxPool3d(2), nn.Conv3d(4, 6, 2), nn.Softplus(),
        nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


TEXT = tw.language_modelling()
ALIGNABLE = {
    "MLP": AlignmentCase(mlp, vectors, 2, 0.98),
    "convolutions, flattened": AlignmentCase(convolutions, images, 3, 0.99),
    "batch norm": AlignmentCase(batch_norms, images, 2, 0.99),
    "residual, projected shortcut": AlignmentCase(residual, images, 4, 0.99),
    "residual, padded shortcut": AlignmentCase(padded_shortcut, images, 4, 0.99),
    "depthwise, squeeze-excite": AlignmentCase(inverted_residual, images, 3, 0.98),
    "ConvNeXt": AlignmentCase(convnext, images, 2, 0.98),
    "grouped convolution": AlignmentCase(grouped, images, 5, 0.99),
    "channel shuffle": AlignmentCase(shuffled, images, 4, 0.99),
    "DenseNet": AlignmentCase(dense, images, 4, 0.99),
    "U-Net": AlignmentCase(unet, images, 4, 0.99),
    "Conv1d, instance norm": AlignmentCase(temporal, signals, 2, 0.98),
    "Conv3d": AlignmentCase(volumetric, volumes, 2, 0.98),
    "siamese": AlignmentCase(siamese, pairs, 2, 0.97),
    "transformer, post-norm": AlignmentCase(transformer, tokens, 9, 0.99),
    "transformer, pre-norm": AlignmentCase(lambda: transformer(norm_first=True, activation="gelu"), tokens, 9, 0.99),
    "ViT": AlignmentCase(vit, images, 5, 0.99),
    "Llama": AlignmentCase(llama, text, 5, 0.99, TEXT),
    "GPT, tied": AlignmentCase(gpt, text, 5, 0.99, TEXT),
    "cross attention": AlignmentCase(cross_attention, sequences, 6, 0.98),
    "MLP-Mixer": AlignmentCase(mixer, images, 3, 0.98),
    "Swin": AlignmentCase(swin, images, 5, 0.98),
    "LSTM": AlignmentCase(lambda: recurrent(nn.LSTM), tokens, 3, 0.99),
    "LSTM, last state": AlignmentCase(lambda: recurrent(nn.LSTM, last=True), tokens, 3, 0.99),
    "LSTM, both ways": AlignmentCase(lambda: recurrent(nn.LSTM, bidirectional=True), tokens, 5, 0.99),
    "GRU": AlignmentCase(lambda: recurrent(nn.GRU), tokens, 3, 0.99),
    "RNN": AlignmentCase(lambda: recurrent(nn.RNN, bias=False), tokens, 3, 0.98),
    "einsum attention": AlignmentCase(einsum_attention, sequences, 4, 0.99),
    "GLU, PReLU": AlignmentCase(gated, vectors, 2, 0.98),
    "mixture of experts": AlignmentCase(experts, vectors, 2, 0.98),
    "cumsum": AlignmentCase(cumulative, vectors, 1, 0.6),
} | LAYERS


@cache
def found(name: str) -> Any:
    case = ALIGNABLE[name]
    return tw.symmetries(case.module(1), case.task, case.batch())


def random_permutation(symmetries: Any, seed: int = 0) -> tw.Permutation:
    g = torch.Generator().manual_seed(seed)
    groups = symmetries.groups
    sizes = dict(pair for terms in symmetries.axes.values() for term in terms for pair in sized(term))
    rows = {name: sizes[group.within] if group.within else 1 for name, group in groups.items()}
    orders = {n: torch.stack([torch.randperm(groups[n].size, generator=g) for _ in range(k)]) for n, k in rows.items()}
    orders = {name: order if name in symmetries.within else order[0] for name, order in orders.items()}
    return tw.Permutation(orders, symmetries.axes, symmetries.within, symmetries.layout)
