"""Checkpoints written by other code: read without running code, and searched for the weights of a network."""

import shlex
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings

import torch
from torch import Tensor

from ..errors import ThalwegError
from . import files

DEPTH, PARTS = 8, 16  # how deeply nested dicts are searched, and how many parts a prefix may have
COUNTER = "n_averaged"  # the counter of torch's AveragedModel
KEYS = ("state_dict", "model_state", "model_state_dict", "model")  # where training scripts keep the weights
# a command that converts a pickle to safetensors, for users who trust it; 'xb': an existing file is not overwritten
CONVERT = (
    "import sys, torch; from safetensors.torch import save; found = torch.load(sys.argv[1], map_location='cpu', "
    "weights_only=False); held = found if isinstance(found, dict) else {{}}; inner = [held[key] for key in "
    "{keys} if key in held] + [v for v in held.values() if isinstance(v, torch.nn.Module)]; found = (inner + "
    "[found])[0]; state = found.state_dict() if hasattr(found, 'state_dict') else found; tensors = {{name: "
    "t.detach().clone().contiguous() for name, t in state.items() if isinstance(t, torch.Tensor)}}; "
    "open(sys.argv[2], 'xb').write(save(tensors))"
)


class Candidate(NamedTuple):
    """A place in a checkpoint where the weights of a network may be."""

    label: str  # the keys and the prefix that lead there, joined by dots
    state: dict[str, Tensor]  # by their names without the prefix
    alone: bool  # whether the prefix is that of a wrapper, not of a part of a larger network

    def fits(self, wanted: Mapping[str, Any], ties: Mapping[str, str]) -> bool:
        right = {ties.get(name, name) for name, tensor in self.state.items() if wanted.get(name) == tensor.shape}
        return right >= {ties.get(name, name) for name in wanted}


def find_state(
    path: Path, wanted: Mapping[str, torch.Size], ties: Mapping[str, str], key: str | None = None
) -> dict[str, Tensor]:
    """The tensors of a network inside a checkpoint, by the network's own names.

    Args:
        path: The checkpoint.
        wanted: The names and shapes of the network's tensors.
        ties: Further names of tied weights, of which any one will do.
        key: Where to look in the checkpoint, if there is a choice.
    """
    held = list(read_tensors(path, key))
    places = [place for entry in held for place in _places(*entry, wanted)]
    under = [place for place in places if key is None or f".{key}." in f".{place.label}."]
    if not under:
        where = f" under '{key}'" if key else ""
        known = [place.label for place in places if place.fits(wanted, ties)] or [place.label for place in places]
        there = (
            _listed(f"{label}.{name}".lstrip(".") for label, tensors in held for name in tensors)
            if not known
            else f"them under {_listed(known)}: choose with key="
            if all(known)
            else "them at its top: leave key= out"
        )
        raise ThalwegError(
            f"{path} holds none of the network's tensors{where}; it holds {there}"
            + (
                ": load adapters with PeftModel.from_pretrained(base, folder, is_trainable=True), and take "
                "Weights.of(it)"
                if "lora_" in there
                else ""
            )
        )
    places = [place for place in under if place.label == key] or under
    fitting = [place for place in places if place.fits(wanted, ties)]
    sure = fitting if key is not None else [place for place in fitting if place.alone]
    top = [place for place in sure if not place.label]
    if not fitting or len(sure) == 1 or top:
        return (top or sure or [max(places, key=lambda place: len(place.state.keys() & wanted.keys()))])[0].state
    raise ThalwegError(
        f"{path} holds weights of this network under {_listed(place.label for place in fitting)}: choose with key="
    )


def read_tensors(path: Path, key: str | None = None) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every dict of tensors in a checkpoint, with its keys joined by dots."""
    read: Any = files.read_safetensors(path)[0] if files.is_safetensors(path) else _unpickled(path, key)
    waiting, found = [("", read, 0)], 0
    while waiting:
        label, content, depth = waiting.pop(0)
        items = list(content.items()) if isinstance(content, Mapping) and depth < DEPTH else []
        waiting += [(f"{label}.{k}".lstrip("."), value, depth + 1) for k, value in items if isinstance(value, Mapping)]
        if tensors := {str(k): value.detach() for k, value in items if _plain(value)}:
            found += 1
            yield label, tensors
    if not found:
        raise ThalwegError(
            f"{path} must hold a state dict, tensors by name; save it with torch.save(model.state_dict(), ...)"
        )


def _places(key: str, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Iterator[Candidate]:
    ends = ((name, name.split(".", i)[-1]) for name in tensors for i in range(min(name.count(".") + 1, PARTS)))
    for prefix in dict.fromkeys(name.removesuffix(end) for name, end in ends if end in wanted):
        alone = all(name.startswith(prefix) or name == COUNTER for name in tensors)
        yield Candidate(".".join(filter(None, (key, prefix[:-1]))), files.below(tensors, prefix), alone)


def _plain(value: Any) -> bool:
    """Whether it is an ordinary tensor, neither sparse nor quantized nor without data."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and value.device.type == "cpu"
    )


def _listed(labels: Any) -> str:
    names = [f"'{label[:80]}'" for label in dict.fromkeys(labels)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _unpickled(path: Path, key: str | None) -> Any:
    # warnings are about very old pickles, which are refused or fine
    with files.reading(path, "checkpoint"), catch_warnings(action="ignore"):
        _check_archive(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whose first line is about options of torch.load
            why = str(error)
            if any(word in why for word in ("GLOBAL", "Unsupported global", "Unsupported class", "TorchScript")):
                convert = CONVERT.format(keys=(key, *KEYS) if key else KEYS)
                command = shlex.join([sys.executable, "-c", convert, str(path), f"{path}.safetensors"])
                raise ThalwegError(
                    f"{path} holds more than tensors, and reading the rest could run code from the file, so it was not "
                    f"read; if you trust it, convert it:\n{command}"
                ) from error
            raise ValueError(why.partition("WeightsUnpickler error: ")[2] or why or "it is empty") from error


def _check_archive(path: Path) -> None:
    """Refuse what torch.save never writes: neither an archive nor a pickle, one name twice, or far more content than
    bytes.
    """
    with open(path, "rb") as file:
        entries = zipfile.ZipFile(file).infolist() if (head := file.read(2)) == b"PK" else []
    if head not in (b"PK", b"") and head[:1] != b"\x80":
        raise ThalwegError(f"{path} is not a checkpoint: give a file that thalweg, torch.save or safetensors wrote")
    if len({entry.filename for entry in entries}) != len(entries):
        raise ValueError("it holds two files of one name")
    if sum(entry.file_size for entry in entries) > 10 * path.stat().st_size:
        raise ValueError("it claims to unpack to more than ten times its size")
