"""Kinds made of the layers that torch has: convolutions, normalisation, dropout, recurrence, attention, embeddings."""

import warnings

import torch
from differential.kind import Base, head, kind, shaped, tanh_mlp, tokens
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

ENDS_DIFFER = dict.fromkeys(("connect", "scan", "bn_batches"), "buffers")  # each end has singular vectors of its own

kind("mlp")(tanh_mlp)


@kind("linear_without_bias")
def linear() -> nn.Module:
    return nn.Linear(4, 3, bias=False)


@kind("conv1d_batch_norm", batches=shaped(4, 6))
def conv1d() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 5, 3), nn.BatchNorm1d(5), nn.ReLU(), nn.Flatten(), head(20))


@kind("conv2d_batch_norm", batches=shaped(2, 4, 4))
def conv2d() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), head(16), nn.BatchNorm1d(3))


@kind("conv3d_batch_norm", batches=shaped(2, 3, 3, 3))
def conv3d() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.Flatten(), head(32))


@kind("transposed_convolution", batches=shaped(2, 3))
def transposed() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Tanh(), nn.Flatten(), head(12))


@kind("channels_last", batches=shaped(2, 4, 4))
def channels_last() -> nn.Module:
    return conv2d().to(memory_format=torch.channels_last)


@kind("group_norm", batches=shaped(4, 4))
def group_norm() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), head(12))


@kind("layer_norm")
def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), head())


@kind("rms_norm")
def rms_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), head())


@kind("instance_norm", batches=shaped(4, 4))
def instance_norm() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 2), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), head(12))


@kind("instance_norm_with_statistics", batches=shaped(4, 4))
def instance_statistics() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 2), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten(), head(12))


def normed(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Tanh(), head())


@kind("batch_norm_without_affine")
def without_affine() -> nn.Module:
    return normed(nn.BatchNorm1d(8, affine=False))


@kind("batch_norm_without_statistics")
def without_statistics() -> nn.Module:
    return normed(nn.BatchNorm1d(8, track_running_stats=False))


@kind("batch_norm_momentum_none")
def cumulative() -> nn.Module:
    return normed(nn.BatchNorm1d(8, momentum=None))


@kind("sync_batch_norm")
def synchronised() -> nn.Module:
    return nn.SyncBatchNorm.convert_sync_batchnorm(normed(nn.BatchNorm1d(8)))


@kind("batch_norm_in_two_places")
class SharedNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.middle, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.middle(self.norm(self.first(x)).tanh())))


@kind("batch_norm_kept_in_eval")
class FrozenNorm(nn.Sequential):
    """The usual overridden train() of detection backbones."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), head())

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[1].eval()
        return self


@kind("batch_norm_unused")
class SpareNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.spare, self.norm = nn.BatchNorm1d(5), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


@kind("batch_norm_by_its_parts", refused={"scan": "unseen", "bn_batches": "unseen"})
class InlineNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm
        x = F.batch_norm(self.first(x), n.running_mean, n.running_var, n.weight, n.bias, n.training, n.momentum)
        return self.last(x)


class Chunked(nn.BatchNorm1d):
    """Ghost batch norm: statistics of parts of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(2) if self.training and len(x) > 3 else [x]
        return torch.cat([super(Chunked, self).forward(part) for part in parts])


@kind("batch_norm_of_chunks", refused={"scan": "own", "bn_batches": "own"})
def chunked() -> nn.Module:
    return normed(Chunked(8))


class Slow(nn.BatchNorm1d):
    """Statistics at a rate of its own, whatever the momentum."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running_mean.data.lerp_(x.detach().mean(0), 0.1)
            self.running_var.data.lerp_(x.detach().var(0), 0.1)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False)


@kind("batch_norm_at_a_rate_of_its_own", refused={"scan": "own", "bn_batches": "own"})
def slow() -> nn.Module:
    return normed(Slow(8))


class Activated(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        trained = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return trained.relu()


@kind("batch_norm_with_a_forward_of_its_own")
def activated() -> nn.Module:
    return normed(Activated(8))


@kind("dropout")
def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), head(16))


@kind("alpha_dropout")
def alpha_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.SELU(), nn.AlphaDropout(0.3), head(16))


@kind("dropout2d", batches=shaped(2, 4, 4))
def dropout2d() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), head(16))


@kind("stochastic_depth")
class StochasticDepth(Base):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if not self.training or torch.rand(()) < 0.5:
            x = x + self.middle(x).tanh()
        return self.last(x)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int = 5) -> None:
        super().__init__()
        self.layer, self.head = layer, head(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


@kind("rnn", batches=shaped(3, 4))
def rnn() -> nn.Module:
    return Recurrent(nn.RNN(4, 5, batch_first=True))


@kind("lstm_of_two_layers", batches=shaped(3, 4))
def lstm() -> nn.Module:
    return Recurrent(nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=True))


@kind("lstm_both_ways_projected", batches=shaped(3, 4))
def projected() -> nn.Module:
    return Recurrent(nn.LSTM(4, 5, proj_size=3, bidirectional=True, batch_first=True), 6)


@kind("gru", batches=shaped(3, 4))
def gru() -> nn.Module:
    return Recurrent(nn.GRU(4, 5, batch_first=True))


@kind("gru_cell", batches=shaped(3, 4))
class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 5), head(5)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


@kind("attention", batches=shaped(3, 4))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True), head(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@kind("transformer", batches=tokens)
class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 2), head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x)).mean(1))


@kind("transformer_decoder", batches=shaped(3, 4))
class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True), head(4)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        return self.head(self.block(x, x, tgt_mask=mask)[:, -1])


class Embedded(nn.Module):
    def __init__(self, **how: object) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5, **how), head(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1).tanh())


kind("embedding", batches=tokens)(Embedded)
kind("embedding_padding", batches=tokens)(lambda: Embedded(padding_idx=0))
kind("embedding_sparse", batches=tokens)(lambda: Embedded(sparse=True))
kind("embedding_max_norm", batches=tokens)(lambda: Embedded(max_norm=1.0))
kind("embedding_scaled_by_frequency", batches=tokens)(lambda: Embedded(scale_grad_by_freq=True))


@kind("embedding_bag", batches=tokens)
class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 5, mode="mean"), head(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))


@kind("bilinear")
class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bilinear(x, x.flip(1))


@kind("prelu")
def prelu() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.PReLU(8), head())


@kind("weight_norm")
def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), head())


@kind("spectral_norm", refused=ENDS_DIFFER)
def spectral_norm() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), head())


@kind("orthogonal", refused=ENDS_DIFFER)
def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), head(4))


@kind("old_weight_norm")
def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 8)), nn.Tanh(), head())


@kind("old_spectral_norm", refused=ENDS_DIFFER)
def old_spectral_norm() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), head())


@kind("pruned")
def pruned() -> nn.Module:
    """The same mask in both ends."""
    module = tanh_mlp()
    prune.custom_from_mask(module[0], "weight", torch.arange(32).reshape(8, 4) % 3 > 0)
    return module


@kind("pruned_differently", refused=ENDS_DIFFER)
def pruned_differently() -> nn.Module:
    module = tanh_mlp()
    prune.random_unstructured(module[0], "weight", amount=0.4)
    return module


@kind("lazy", refused="uninitialised")
def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), head())


@kind("lazy_after_a_pass")
def lazy_used() -> nn.Module:
    module = lazy()
    module(torch.ones(2, 4))
    return module
