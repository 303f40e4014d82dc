"""Tensors and results on disk: written atomically, versioned, hashed, and read without running code."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ThalwegError, first_line

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
PART = ".thalweg-part"  # of a folder in which a file is being written
# a run folder that holds its result is finished
WEIGHTS = "weights.safetensors"
CURVE = "curve.safetensors"
TRACE = "trace.json"
SCAN = "scan.json"
COMPARISON = "comparison.json"
BARRIERS = "barriers.json"
CHECKPOINTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # that may hold weights
MARKS = ("thalweg", "sha256", "about")  # found only in files of ours


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file next to `path`, then move it there: a reader sees the old file or the new one.

    It is in a separate folder, so that what other libraries leave there when they are killed can be recognised.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART))
        try:
            temporary = folder / path.name
            temporary.touch()
            mode = temporary.stat().st_mode  # as the user's umask has it; some libraries make their files private
            writer(temporary)
            temporary.chmod(mode)
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            discard(folder)


def write_text(path: Path, text: str) -> None:
    """The same for a file of text."""
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report in one sentence which file could not be written, and why: a full disk, a read-only folder, a name too
    long.
    """
    try:
        yield
    except OSError as error:
        raise ThalwegError(
            f"{path} could not be written ({error.strerror or first_line(error)}), and what was there before is "
            f"unchanged: {'make room or ' * (error.errno in (None, ENOSPC, EDQUOT))}choose another folder, then try "
            "again"
        ) from error


@contextmanager
def reading(path: Path, what: str = "", advice: str = "it may be truncated") -> Iterator[None]:
    """Report in one sentence which file it was, whatever goes wrong while its contents are parsed.

    Args:
        path: The file.
        what: The format that it should have, if others write that, too, such as "JSON file".
        advice: What to do about a file that does not have it.
    """
    try:
        yield
    except ThalwegError as error:
        if path.name in str(error):
            raise
        raise ThalwegError(f"{path} cannot be used: {error}") from error
    except OSError as error:
        raise ThalwegError(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions"
        ) from error
    except Exception as error:
        why = first_line(error)[:200]
        if what:
            raise ThalwegError(f"{path} is not a whole {what} ({why}): {advice}") from error
        raise ThalwegError(
            f"{path} is not a file that thalweg wrote whole ({type(error).__name__}: {why}): restore it from a copy, "
            "or make it again"
        ) from error


def save_tensors(path: Path, kind: str, tensors: "Mapping[str, Tensor]", about: Mapping[str, Any]) -> None:
    """One safetensors file; `about` is JSON that describes the tensors."""
    try:
        text = json.dumps(about)
    except TypeError as error:
        raise ThalwegError(f"what is saved with tensors must be JSON, and this {kind} is not: {error}") from None
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"thalweg": kind, "format": str(FORMAT), "about": text, "sha256": digest(kind, flat, text)}
    write(path, lambda temporary: _save_in_order(flat, temporary, metadata))


def _save_in_order(tensors: "dict[str, Tensor]", path: Path, metadata: dict[str, str]) -> None:
    """Equal content gives equal bytes, though safetensors writes metadata in arbitrary order."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # such as a full disk
        raise OSError(first_line(error)) from error
    except KeyError as error:
        name = next((name for name, tensor in tensors.items() if tensor.dtype == error.args[0]), "")
        raise ThalwegError(
            f"'{name}' cannot be saved, since a safetensors file holds no {error.args[0]}: convert it"
        ) from None
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        text = json.dumps(header | {"__metadata__": metadata}, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def load_tensors(path: Path, kind: str, whole: bool = True) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read what `save_tensors` wrote, after checking its kind, format and hash.

    Args:
        path: The file.
        kind: What it must hold.
        whole: Whether to read tensors that are stored in shards, too, in a folder next to it.
    """
    tensors, metadata = read_safetensors(path) if is_safetensors(path) else ({}, {})
    expect(path, kind, metadata, _own_kind(path, metadata))
    if metadata.get("sha256") != digest(kind, tensors, metadata.get("about", "")):
        raise _damaged(path)
    with reading(path):
        about = dict(json.loads(metadata["about"]))
    if whole and "shards" in about:
        from ..runtime.compute import read_whole

        tensors |= read_whole(path, about)
    return tensors, about


def place(path: str | Path) -> Path:
    """A path that the caller gave, checked: of the right type, and one that the system can look up."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.lstat(str(path).encode().decode())  # names that are not UTF-8 cannot be read by safetensors
        return Path(path)
    except (OSError, TypeError, ValueError) as error:
        raise ThalwegError(
            f"{str(path)!r} cannot be a path ({getattr(error, 'strerror', None) or error}): give the name of a file or "
            "a folder"
        ) from None


def next_to(path: Path, name: object, kind: str) -> Path:
    """The file that the one at `path` names: one that we would write next to it, and no link, since anybody may have
    named it.
    """
    if not isinstance(name, str) or not re.fullmatch(rf"{kind}-[0-9a-f]{{16}}\.safetensors", name):
        raise ThalwegError(
            f"{path} may name only files next to it, such as {kind}-0123456789abcdef.safetensors, but it names "
            f"{repr(name)[:80]}: thalweg did not write it so, do not use it"
        )
    return no_link(path.with_name(name))


def no_link(path: Path) -> Path:
    """A part of a folder of ours, which anybody may have made: links in it are neither read nor written through."""
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
        raise ThalwegError(
            f"{path} is a {'link' if path.is_symlink() else 'pipe or a device'}, and such things inside a folder of a "
            "run or an ensemble are not followed: put there the file that it leads to"
        )
    return path


def remove(path: Path, kind: str) -> None:
    """Delete a file of ours; a link, or anything else of that name, is left alone."""
    with suppress(ThalwegError):
        if path.is_file() and not path.is_symlink() and kind_of(path) == kind:
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete what a killed process left half-written; only folders of that name, and never through a link."""
    for left in folder.glob(f".*{PART}"):
        if left.is_dir() and not left.is_symlink():
            discard(left)


def discard(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()


def below(tensors: "Mapping[str, Tensor]", prefix: str) -> "dict[str, Tensor]":
    """The entries whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def kind_of(path: Path) -> str | None:
    """Which kind of file of ours this is, or None if it is not ours."""
    return _own_kind(path, _open(path, lambda file: file.metadata() or {}))


def _own_kind(path: Path, said: Mapping[str, Any]) -> str | None:
    """The declared kind of a file; a file with any of our marks is ours, and damaged if it has no kind."""
    kind = said.get("thalweg")
    if not isinstance(kind, str) and any(mark in said for mark in MARKS):
        raise _damaged(path)
    return kind


def expect(path: Path, kind: str, said: Mapping[str, Any], found: str | None) -> None:
    """Raise unless a file is one of ours, of this kind, in the format that we read."""
    if found != kind:
        right, came = (f"{'an' if k[:1] in {*'aeiou'} else 'a'} {k[:80]} file" for k in (kind, found or ""))
        raise ThalwegError(
            f"{path} must be {right}, but {'thalweg did not write it' if found is None else f'it is {came}'}: "
            + (
                "give module= to read a checkpoint of other code"
                if (kind, found) == ("weights", None)
                else "check the path"
            )
        )
    check_format(path, said.get("format"))


def _damaged(path: Path) -> ThalwegError:
    return ThalwegError(
        f"{path} is damaged or was edited: its contents do not match the hash stored in it; restore it from a copy"
    )


def is_safetensors(path: Path) -> bool:
    """By content, since a name can be anything; a damaged file is judged by its name."""
    with reading(existing(path)), open(path, "rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def save_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content)
    record = {"thalweg": kind, "format": FORMAT, "sha256": text_digest(kind, text), "content": json.loads(text)}
    write_text(path, json.dumps(record, indent=1) + "\n")


def load_json(path: Path, kind: str) -> dict[str, Any]:
    record = _parse(path)
    expect(path, kind, record, json_kind(path, record))
    with reading(path):
        content = record["content"]
        if record["sha256"] != text_digest(kind, json.dumps(content)) or not isinstance(content, dict):
            raise _damaged(path)
        return content


def json_kind(path: Path, record: Any = None) -> str | None:
    """Which kind of JSON file of ours this is, or None if it is not ours."""
    record = _parse(path) if record is None else record
    ours = isinstance(record, dict) and (
        "thalweg" in record or ("sha256" in record and {"content", "format"} & record.keys())
    )
    return _own_kind(path, record) if ours else None


def check_format(path: Path, found: Any) -> None:
    if str(found) != str(FORMAT):
        raise ThalwegError(
            f"{path} has format {found}; this thalweg reads format {FORMAT}: use the version that wrote it"
        )


def inside(path: str | Path, *names: str) -> Path:
    """The file itself, or the first of these names that exists in a run folder."""
    path = place(path)
    if not path.is_dir():
        return path
    found = next((path / name for name in names if (path / name).is_file()), None)
    if found is None:
        raise ThalwegError(f"{path} holds no {' or '.join(names)}{_instead(path, names[0])}")
    return found


def _instead(folder: Path, name: str) -> str:
    """What to do about a folder without the result that was looked for."""
    if (folder / "run.json").is_file():
        about = load_json(folder / "run.json", "run")
        advice = (
            "has finished: give a file or"
            if "finished" in about
            else "has not finished: resume it (--resume on the command line), or give"
            if "facts" in about
            else "is of an older thalweg and cannot be resumed: make it again, or give"
        )
        return f", but a run of {about.get('command')}, which {advice} another folder"
    suffixes = CHECKPOINTS if name == WEIGHTS else (Path(name).suffix,)
    held = [path.name for path in sorted(folder.iterdir()) if (path / name).is_file() or path.suffix in suffixes]
    if held:
        return (
            f": give {' '.join(str(folder / name) for name in held[:8])}{' ...' * (len(held) > 8)}"
            f"{', or one of them' * (len(held) > 1)}"
        )
    return ": give a file, or the folder of a run that has finished"


def existing(path: Path) -> Path:
    with reading(path):
        if not path.is_file():
            raise ThalwegError(f"{path} {'is not a file' if path.exists() else 'does not exist'}: check the path")
    return path


def read_safetensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    return _open(path, lambda file: ({name: file.get_tensor(name) for name in [*file.keys()]}, file.metadata() or {}))


def _open(path: Path, read: Callable[[Any], Any]) -> Any:
    from safetensors import safe_open

    with (
        reading(existing(path), "safetensors file", "it may be truncated; restore it"),
        safe_open(path, framework="pt") as file,
    ):
        return read(file)


def parse(text: str) -> Any:
    """Parse JSON; text that is nested too deeply or has too long a number raises a ValueError like any other error."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse(path: Path) -> Any:
    with reading(existing(path), "JSON file", "it may be truncated, or thalweg did not write it"):
        return parse(path.read_text(encoding="utf-8"))


def digest(kind: str, tensors: "Mapping[str, Tensor]", about: str) -> str:
    import torch

    sha = hashlib.sha256(f"{kind}\n{about}\n".encode())
    for name in sorted(tensors):
        tensor = gathered(tensors[name].detach()).cpu()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def gathered(tensor: "Tensor") -> "Tensor":
    """The whole of a tensor that may be divided among processes, all of which must ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def text_digest(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
