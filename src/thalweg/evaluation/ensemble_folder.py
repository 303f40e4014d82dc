"""The folder of an ensemble: a manifest, one file per member, and one for what they share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from ..errors import ThalwegError
from ..store import files
from ..weightspace.layout import Layout
from ..weightspace.weights import Weights, base_name

MANIFEST = "ensemble.json"


def save(folder: Path, layout: Layout, members: Sequence[Weights], temperature: float | None) -> None:
    """Write the members and the manifest, and remove files that only an earlier manifest names."""
    manifest = folder / MANIFEST
    again = manifest.is_file()
    files.sweep(folder)
    if not again and folder.exists() and not (folder.is_dir() and all(map(_is_member, folder.iterdir()))):
        raise ThalwegError(
            f"{folder} holds something other than an ensemble, and is never overwritten: choose another folder"
        )
    before = _files(manifest, read(manifest, layout)[0]) if again else set()
    entries = [_save_member(folder, member) for member in members]
    kept = {} if temperature is None else {"temperature": temperature}
    files.save_json(manifest, "ensemble", {"layout": layout.to_dict(), "members": entries, **kept})
    for stale in before - _files(manifest, entries):
        files.remove(*stale)


def _save_member(folder: Path, member: Weights) -> dict[str, Any]:
    """Named by its content, so that a file is never overwritten."""
    digest = member.digest()
    name = f"member-{digest[:16]}.safetensors"
    replace(member, kept={}).save(folder / name, apart=True)
    base = {"base": base_name(member.frozen)} if member.frozen else {}
    return {"file": name, "sha256": digest, "made": dict(member.made), **base}


def read(manifest: Path, layout: Layout) -> tuple[list[dict[str, Any]], float | None]:
    """The entries of the members, and the temperature."""
    content = files.load_json(manifest, "ensemble")
    with files.reading(manifest):
        found = Layout.from_dict(content["layout"])
        entries = [{"file": entry["file"], "sha256": entry["sha256"], **entry} for entry in content["members"]]
        temperature = content.get("temperature")
        if temperature is not None and not (isinstance(temperature, float) and 0 < temperature < inf):
            raise ValueError("its temperature is not a positive number")
    layout.check(found, "the network", f"the ensemble in {manifest.parent}")
    return entries, temperature


def load_member(manifest: Path, entry: Mapping[str, Any]) -> Weights:
    path = files.next_to(manifest, entry["file"], "member")
    try:
        member = Weights.load(path)
    except ThalwegError as error:
        raise ThalwegError(f"{error} (or give the others alone, in Python with skip=['{entry['file']}'])") from None
    if member.digest() != entry["sha256"]:
        raise ThalwegError(
            f"{path} is not the member that was saved there: its contents do not match the ensemble's manifest; "
            f"restore it, or give the others alone, in Python with skip=['{entry['file']}']"
        )
    return member


def _files(manifest: Path, entries: Sequence[Mapping[str, Any]]) -> set[tuple[Path, str]]:
    """The files that a manifest names, and the kind of each."""
    kinds = (("file", "member", "weights"), ("base", "base", "base"))
    return {
        (files.next_to(manifest, entry[key], name), kind)
        for entry in entries
        for key, name, kind in kinds
        if key in entry
    }


def _is_member(path: Path) -> bool:
    """Whether it was left by a save that was killed before it wrote the manifest."""
    named = path.suffix == ".safetensors" and path.name.startswith(("member-", "base-"))
    return named and path.is_file() and not path.is_symlink() and files.kind_of(path) in ("weights", "base")
