"""Words as numbers, and streams of them."""

import pytest
import torch

import thalweg as tw
from thalweg.paper.data import TokenBatches, ptb
from thalweg.runtime.transfer import MadeOnDevice

TEXT = {"ptb.train.txt": b" b a b\n c a b\n", "ptb.valid.txt": b" c\n", "ptb.test.txt": b" a a\n b\n"}


@pytest.mark.parametrize("place", [".", "ptb", "simple-examples/data"])
def test_tokens_are_ordered_by_frequency_then_alphabet(place, tmp_path, published, written):
    published("ptb", TEXT)
    written(tmp_path / place, TEXT)
    train, valid, test, words = ptb(tmp_path)
    assert words == ["b", "<eos>", "a", "c"]
    assert (train.dtype, train.tolist()) == (torch.int64, [0, 2, 0, 1, 3, 2, 0, 1])
    assert (valid.tolist(), test.tolist()) == ([3, 1], [2, 2, 1, 0, 1])


def test_tokens_of_wrong_and_absent_text(tmp_path, published, written):
    with pytest.raises(tw.ThalwegError, match=r"the Penn Treebank must be .*unpack http.*simple-examples\.tgz in"):
        ptb(tmp_path)
    published("ptb", TEXT)
    written(tmp_path, {**TEXT, "ptb.valid.txt": b" a\n"})
    with pytest.raises(tw.ThalwegError, match=r"ptb\.valid\.txt is not the published file"):
        ptb(tmp_path)


@pytest.mark.parametrize(
    ("count", "batch_size", "steps"), [(100, 4, 5), (103, 4, 6), (101, 1, 10), (21, 10, 1), (840, 20, 35)]
)
def test_token_streams_against_a_plain_loop(count, batch_size, steps):
    tokens = torch.randint(50, (count,), generator=torch.Generator().manual_seed(0))
    batches, length = TokenBatches(tokens, batch_size, steps), count // batch_size
    for _ in range(2):
        expected = []
        for start in range(0, length, steps):
            rows = [
                tokens[row * length + start : (row + 1) * length][: steps + 1].tolist() for row in range(batch_size)
            ]
            if len(rows[0]) == steps + 1:
                expected.append(([row[:-1] for row in rows], float(start == 0), [row[1:] for row in rows]))
        assert [tuple(part.tolist() for part in batch) for batch in batches] == expected
        assert len(batches) == len(expected)
    assert isinstance(batches, MadeOnDevice)


def test_token_batch_dtypes():
    inputs, fresh, targets = next(iter(TokenBatches(torch.arange(1000))))
    assert inputs.shape == targets.shape == (20, 35)
    assert (inputs.dtype, targets.dtype, fresh.dtype, fresh.shape) == (torch.int64, torch.int64, torch.float32, ())


@pytest.mark.parametrize(
    ("tokens", "batch_size", "steps"),
    [(torch.arange(10), 2, 5), (torch.arange(10), 0, 5), (torch.arange(10), 2, 0), (torch.zeros(4, 9), 2, 1)],
)
def test_tokens_too_few_for_a_batch(tokens, batch_size, steps):
    with pytest.raises(tw.ThalwegError, match="tokens must be one row, long enough"):
        TokenBatches(tokens, batch_size, steps)
