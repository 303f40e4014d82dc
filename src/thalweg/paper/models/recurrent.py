"""A recurrent network over words whose state is carried from batch to batch."""

from typing import Literal

import torch
from torch import Tensor, nn

SIZES = {"large": (1500, 0.04, 0.65), "medium": (650, 0.05, 0.5)}  # hidden, init, dropout


class Lstm(nn.Module):
    """An LSTM language model with dropout before each layer and after the last.

    Examples:
        >>> net = Lstm(hidden=8, words=50, batch=4)
        >>> tokens = torch.zeros(4, 7, dtype=torch.int64)
        >>> net(tokens, fresh=torch.tensor(1.0)).shape
        torch.Size([4, 7, 50])

    `net(tokens, fresh)` maps words (batch, time) to logits (batch, time, words). It continues from the state after the
    previous batch; `fresh` is 1 in the first batch of an epoch, which starts from zeros, and 0 in the others. The state
    is not part of the weights, and no gradient flows through it.

    Args:
        hidden: The size of each layer and of the embedding.
        words: The size of the vocabulary.
        batch: The number of parallel sequences, the same in every batch.
        layers: The number of LSTM layers.
        init: All weights and biases are initialised uniformly between -init and init.
        dropout: The probability of dropping a value.
    """

    hidden: Tensor
    cell: Tensor

    def __init__(
        self,
        hidden: int,
        words: int = 10_000,
        batch: int = 20,
        layers: int = 2,
        init: float = 0.05,
        dropout: float = 0.5,
    ):
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        # not one stack: dropout inside it is cuDNN's, whose random state torch cannot save and restore
        self.layers = nn.ModuleList(nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, words)
        for name in ("hidden", "cell"):
            self.register_buffer(name, torch.zeros(layers, batch, hidden), persistent=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -init, init)

    def forward(self, tokens: Tensor, fresh: Tensor) -> Tensor:
        """The logits of the next word at each position, (batch, time, words).

        Args:
            tokens: Words by number, (batch, time).
            fresh: 1 to start from a state of zeros, 0 to continue from the state after the previous batch.
        """
        self._check(tokens)
        x = self.dropout(self.embedding(tokens))
        for layer, *states in zip(self.layers, self.hidden, self.cell, strict=True):
            # copies, since the states are overwritten before the backward pass reads these
            before = [state.masked_fill(fresh > 0, 0.0).unsqueeze(0) for state in states]
            x, after = layer(x, tuple(before))
            for state, value in zip(states, after, strict=True):
                state.copy_(value.detach().squeeze(0))  # in place: a captured step reads and writes fixed addresses
            x = self.dropout(x)
        return self.output(x)

    def _check(self, tokens: Tensor) -> None:
        rows = self.hidden.shape[1]
        if tokens.ndim != 2 or tokens.shape[0] != rows:
            raise ValueError(
                f"tokens must be (batch, time) with a batch of {rows}, one row for each state that is carried on; got "
                f"{tuple(tokens.shape)}: drop the short batch, or make the network with batch={tokens.shape[0]}"
            )


def lstm(size: Literal["large", "medium"] = "large", words: int = 10_000, batch: int = 20) -> Lstm:
    """The paper's network for Penn Treebank: two layers, with the sizes of the TensorFlow tutorial of 2018.

    Examples:
        >>> sum(p.numel() for p in lstm("medium").parameters())
        19780400

    Args:
        size: "large" (1500 units, init 0.04, dropout 0.65) or "medium" (650, 0.05, 0.5); `Lstm` takes other sizes.
        words: The size of the vocabulary.
        batch: The number of parallel sequences.
    """
    if size not in SIZES:
        raise ValueError(f"the size must be one of {', '.join(SIZES)}; got {size!r}: use Lstm(hidden=...) for another")
    hidden, init, dropout = SIZES[size]
    return Lstm(hidden, words, batch, init=init, dropout=dropout)
