"""Tensors and results on disk: written whole or not at all, versioned, hashed, and read without running code."""

import hashlib
import json
import os
import pickle
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import ThalwegError

FORMAT = 1
PART = ".thalweg-part"  # of a file that is being written
WRAPPERS = ("state_dict", "model_state", "model_state_dict", "model")  # where training scripts keep the weights
PREFIXES = ("module.", "_orig_mod.")  # of data-parallel and compiled networks


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file beside `path`, then move it there: a reader sees the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    os.close(descriptor)
    try:
        writer(Path(name))
        os.chmod(name, 0o666 & ~_umask())
        _sync(name)
        os.replace(name, path)
        _sync(path.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def save_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """One safetensors file; `about` is JSON that says what the tensors are."""
    try:
        text = json.dumps(about)
    except TypeError as error:
        raise ThalwegError(f"what is saved beside tensors must be JSON, and this {kind} is not: {error}") from None
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"thalweg": kind, "format": str(FORMAT), "about": text, "sha256": digest(kind, flat, text)}
    write(path, lambda temporary: _save_in_order(flat, temporary, metadata))


def _save_in_order(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Equal content gives equal bytes, though safetensors writes metadata in an order that changes every time."""
    save_file(tensors, path, metadata=metadata)
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        text = json.dumps(header | {"__metadata__": metadata}, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote, after checking that it is that, of a known format, and undamaged."""
    tensors, metadata = _read_safetensors(path)
    if metadata.get("thalweg") != kind:
        found = f"it holds {metadata['thalweg']}" if "thalweg" in metadata else "thalweg did not write it"
        raise ThalwegError(f"{path} must be a file of {kind}, but {found}")
    check_format(path, metadata.get("format"))
    if metadata.get("sha256") != digest(kind, tensors, metadata.get("about", "")):
        raise ThalwegError(f"{path} is damaged: its contents do not match the hash stored in it; restore it from a copy")
    return tensors, json.loads(metadata["about"])


def beside(path: Path, name: object, kind: str) -> Path:
    """The file that the one at `path` names: one that we would write beside it, and no link, since anybody may have named it."""
    if not isinstance(name, str) or not re.fullmatch(rf"{kind}-[0-9a-f]{{16}}\.safetensors", name):
        rule = f"{path} may name only files beside it, such as {kind}-0123456789abcdef.safetensors"
        raise ThalwegError(f"{rule}, but it names {repr(name)[:80]}: thalweg did not write it so, do not use it")
    found = path.with_name(name)
    if found.is_symlink():
        raise ThalwegError(f"{found} is a link, and links that {path.name} names are not followed: put the file itself there")
    return found


def remove(path: Path, kind: str) -> None:
    """Delete a file of ours; a link, or whatever else may have that name, is left alone."""
    with suppress(ThalwegError):
        if path.is_file() and not path.is_symlink() and kind_of(path) == kind:
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete what a process that was killed left half-written; only files of that name, and never through a link."""
    for path in folder.glob(f".*{PART}"):
        if path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def kind_of(path: Path) -> str | None:
    """Which kind of file of ours this is, or None for somebody else's."""
    return _open(path, lambda file: (file.metadata() or {}).get("thalweg"))


def is_safetensors(path: Path) -> bool:
    """By content, since a name can be anything; a damaged file counts by its name."""
    with open(existing(path), "rb") as file:
        start = file.read(9)
    return path.suffix == ".safetensors" or start[8:] == b"{"


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a user's own checkpoint: a safetensors file, or a `.pt` file read without running code."""
    if is_safetensors(path):
        return _read_safetensors(path)[0]
    state = _unwrapped(_read_pickle(path))
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ThalwegError(f"{path} must hold a state dict, tensors by name; save it with torch.save(model.state_dict(), ...)")
    return _without_prefix(dict(state))


def save_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content)
    record = {"thalweg": kind, "format": FORMAT, "sha256": text_digest(kind, text), "content": json.loads(text)}
    write(path, lambda temporary: temporary.write_text(json.dumps(record, indent=1) + "\n"))


def load_json(path: Path, kind: str) -> dict[str, Any]:
    record = _parse(path)
    if not isinstance(record, dict) or record.get("thalweg") != kind or not isinstance(record.get("content"), dict):
        raise ThalwegError(f"{path} must be a thalweg file of kind '{kind}', and it is not one")
    check_format(path, record.get("format"))
    if record.get("sha256") != text_digest(kind, json.dumps(record["content"])):
        raise ThalwegError(f"{path} is damaged or was edited: its contents do not match the hash stored in it")
    return record["content"]


def json_kind(path: Path) -> str | None:
    """Which kind of JSON file of ours this is, or None for somebody else's."""
    record = _parse(path)
    return record.get("thalweg") if isinstance(record, dict) else None


def check_format(path: Path, found: Any) -> None:
    if str(found) != str(FORMAT):
        raise ThalwegError(f"{path} has format {found}; this thalweg reads format {FORMAT}: use the version that wrote it")


def existing(path: Path) -> Path:
    if not path.is_file():
        raise ThalwegError(f"{path} is not a file: check the path")
    return path


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    return _open(path, lambda file: ({name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}))  # noqa: SIM118


def _open(path: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with safe_open(existing(path), framework="pt") as file:
            return read(file)
    except (SafetensorError, OSError) as error:
        with open(path, "rb") as file:
            pickled = file.read(2) in (b"PK", b"\x80\x02")  # as torch.save writes now, and as it did
        advice = "it is one of torch.save; read it with torch.load, and make Weights of it with Weights.from_state"
        what = advice if pickled else "it may be truncated; make it again or restore it"
        raise ThalwegError(f"{path} is not a whole safetensors file ({error}): {what}") from None


def _read_pickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of unusual age, which are refused or fine
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ThalwegError(
            f"{path} holds more than tensors, and reading the rest could run code from the file, so it was not read; "
            "where you trust it, load it yourself and save its state dict as safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise ThalwegError(f"{path} is not a whole checkpoint ({error}): it may be truncated") from None


def _unwrapped(state: Any) -> Any:
    """The state dict inside the records that training scripts save."""
    for key in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            return _unwrapped(state[key])
    return state


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            return _without_prefix({name.removeprefix(prefix): value for name, value in state.items()})
    return state


def _parse(path: Path) -> Any:
    try:
        return json.loads(existing(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ThalwegError(f"{path} is not a whole JSON file ({error}): it may be truncated") from None


def digest(kind: str, tensors: Mapping[str, Tensor], about: str) -> str:
    sha = hashlib.sha256(f"{kind}\n{about}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def text_digest(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
