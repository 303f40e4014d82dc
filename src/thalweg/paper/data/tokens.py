"""The Penn Treebank as numbers, and batches for a recurrent network."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ThalwegError
from .fetch import found

END = "<eos>"


class Corpus(NamedTuple):
    """The tokens of a text (int64), in three parts, and the words they stand for."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: list[str]


def ptb(folder: str | Path, *, download: bool = False) -> Corpus:
    """The Penn Treebank: 929,589 training, 73,760 validation and 82,430 test tokens; 10,000 words.

    Examples:
        >>> train, valid, test, words = ptb("data")  # doctest: +SKIP
        >>> " ".join(words[token] for token in train[24:35].tolist())  # doctest: +SKIP
        '<eos> pierre <unk> N years old will join the board as'

    Words are numbered by their frequency in the training part, most frequent first, then alphabetically; every line
    ends with the word `<eos>`.

    Args:
        folder: Where `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt` are, or the folder that contains `ptb` or
            `simple-examples/data`.
        download: Download the text if it is not there.
    """
    copy = found("ptb", folder, download)
    train, valid, test = (copy.content(name).decode().replace("\n", f" {END} ").split() for name in copy.form.files)
    counts = Counter(train)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(words)}
    train_tokens, valid_tokens, test_tokens = (
        torch.tensor([number[word] for word in part]) for part in (train, valid, test)
    )
    return Corpus(train_tokens, valid_tokens, test_tokens, words)


class TokenBatches:
    """Batches `(inputs, fresh, targets)` for a recurrent network that carries its state from one batch to the next.

    Examples:
        >>> for inputs, fresh, targets in TokenBatches(torch.arange(11), batch_size=2, steps=2):
        ...     inputs.tolist(), fresh.item(), targets.tolist()
        ([[0, 1], [5, 6]], 1.0, [[1, 2], [6, 7]])
        ([[2, 3], [7, 8]], 0.0, [[3, 4], [8, 9]])

    The text is cut into `batch_size` streams of equal length, and row i of every batch continues row i of the previous
    one. Targets are the tokens that follow. `fresh` is 1 in the first batch of an epoch, where the state must be reset
    to zero, and 0 afterwards. Tokens that do not fill the streams, or `steps` at their end, are dropped.

    Args:
        tokens: The text, one long row.
        batch_size: The number of streams.
        steps: Tokens of each stream in a batch.
        device: Where the tokens are stored.
    """

    def __init__(self, tokens: Tensor, batch_size: int = 20, steps: int = 35, device: torch.device | str = "cpu"):
        length = len(tokens) // max(batch_size, 1)
        if tokens.ndim != 1 or min(batch_size, steps) < 1 or length <= steps:
            raise ThalwegError(
                "tokens must be one row, long enough for one batch of batch_size x steps and one more column; got "
                f"{tuple(tokens.shape)}, batch_size={batch_size} and steps={steps}"
            )
        self.streams = tokens[: batch_size * length].reshape(batch_size, length).to(device)
        self.steps, self.along = steps, torch.arange(steps, device=device)

    @property
    def device(self) -> torch.device:
        return self.streams.device

    @property
    def contents(self) -> dict[str, Any]:
        """Everything that determines the batches; a run folder compares it."""
        return {"streams": self.streams, "steps": self.steps}

    def __len__(self) -> int:
        return (self.streams.shape[1] - 1) // self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return map(self.make, self.draws())

    def draws(self) -> Iterator[Tensor]:
        """For each batch of one epoch, its position in the streams."""
        return iter(torch.arange(len(self), device=self.device) * self.steps)

    def make(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batch at this position; only tensors are read, so that it can be captured in a CUDA graph."""
        place = start + self.along
        return self.streams[:, place], (start == 0).float(), self.streams[:, place + 1]
