"""The Penn Treebank as numbers, and batches for a recurrent network."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ThalwegError
from .fetch import found

END = "<eos>"


class Corpus(NamedTuple):
    """The tokens of a text (int64), in three parts, and the words that they number."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: list[str]


def ptb(folder: str | Path, *, download: bool = False) -> Corpus:
    """The Penn Treebank: 929,589 tokens to train on, 73,760 to choose settings by, 82,430 to test; 10,000 words.

    >>> train, valid, test, words = ptb("data")  # doctest: +SKIP
    >>> " ".join(words[token] for token in train[24:35].tolist())  # doctest: +SKIP
    '<eos> pierre <unk> N years old will join the board as'

    Words are numbered by how often the training part has them, the most frequent first, and then by the alphabet; every
    line ends with the word `<eos>`.

    folder: where `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt` lie, or the folder `ptb` or `simple-examples/data` that
        holds them.
    download: fetch the text from the page of those who prepared it if it is not there.
    """
    copy = found("ptb", folder, download)
    train, valid, test = (copy.content(name).decode().replace("\n", f" {END} ").split() for name in copy.form.files)
    counts = Counter(train)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: i for i, word in enumerate(words)}
    train_tokens, valid_tokens, test_tokens = (torch.tensor([number[word] for word in part]) for part in (train, valid, test))
    return Corpus(train_tokens, valid_tokens, test_tokens, words)


class TokenBatches:
    """Batches `(inputs, fresh, targets)` for a recurrent network that carries its state from one to the next.

    >>> for inputs, fresh, targets in TokenBatches(torch.arange(11), batch_size=2, steps=2):
    ...     inputs.tolist(), fresh.item(), targets.tolist()
    ([[0, 1], [5, 6]], 1.0, [[1, 2], [6, 7]])
    ([[2, 3], [7, 8]], 0.0, [[3, 4], [8, 9]])

    The text is cut into `batch_size` streams of equal length, and row i of every batch goes on where row i of the one before
    ended. Targets are the tokens that follow. `fresh` is 1 in the first batch of a pass, where the state must be set to zero,
    and 0 afterwards. What does not fill the streams, or `steps` at their end, is left out.

    tokens: one long row of them. steps: how many of each stream a batch holds. device: where everything lies.
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
        """All that decides which batches come; a run folder compares it."""
        return {"streams": self.streams, "steps": self.steps}

    def __len__(self) -> int:
        return (self.streams.shape[1] - 1) // self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return map(self.make, self.draws())

    def draws(self) -> Iterator[Tensor]:
        """For each batch of one pass, where in the streams it begins."""
        return iter(torch.arange(len(self), device=self.device) * self.steps)

    def make(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batch that begins there; only tensors are read, so that a CUDA graph can hold it."""
        place = start + self.along
        return self.streams[:, place], (start == 0).float(), self.streams[:, place + 1]
