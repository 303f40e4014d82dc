"""Files that a stranger may have made: they name nothing outside their folder, and nothing of the user's is deleted."""

import os

import pytest
import torch
from run_folders import curve, edit_json, tree
from torch import nn

import thalweg as tw
from thalweg.reporting import page
from thalweg.store import files
from thalweg.store.runs import Run
from thalweg.weightspace.checkpoint import Checkpoint

HOSTILE = [
    "../mine.txt",
    "/etc/passwd",
    "..",
    ".",
    "",
    "sub/member-0123456789abcdef.safetensors",
    "a\\b",
    "a\0b",
    "C:x",
]
HOSTILE += ["mine.txt", "member-0123456789abcdef.safetensors\n", "x" * 5000, 3, None, ["a"], {"a": 1}]


def network(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def ensemble(*seeds):
    return tw.Ensemble(network(0), [tw.Weights.of(network(seed)) for seed in seeds])


def adapted(seed):
    net = nn.Sequential(network(1), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    torch.manual_seed(seed)
    nn.init.normal_(net[1].weight)
    return net


@pytest.mark.parametrize("key", ["file", "base"])
@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_manifest_names_only_files_next_to_it(key, name, tmp_path):
    folder, mine = tmp_path / "members", tmp_path / "mine.txt"
    mine.write_text("mine")
    ensemble(1, 2).save(folder)
    (folder / "mine.txt").write_text("mine too")
    edit_json(folder / "ensemble.json", "ensemble", lambda manifest: manifest["members"][0].update({key: name}))
    before = tree(tmp_path)
    with pytest.raises(tw.ThalwegError, match=r"ensemble\.json may name only files next to it"):
        ensemble(3).save(folder)
    if key == "file":
        with pytest.raises(tw.ThalwegError, match=r"ensemble\.json may name only files next to it"):
            tw.Ensemble.load(folder, network(0))
    assert tree(tmp_path) == before


def test_manifest_with_absolute_name_deletes_nothing(tmp_path):
    mine = tmp_path / "member-0123456789abcdef.safetensors"
    mine.write_text("mine")
    ensemble(1).save(tmp_path / "members")
    edit_json(tmp_path / "members" / "ensemble.json", "ensemble", lambda m: m["members"][0].update(file=str(mine)))
    with pytest.raises(tw.ThalwegError, match="may name only files next to it"):
        ensemble(2).save(tmp_path / "members")
    assert mine.read_text() == "mine"


def test_stale_member_is_deleted_only_if_its_header_says_it_is_ours(tmp_path):
    ensemble(1, 2).save(tmp_path)
    first, second = (path for path in sorted(tmp_path.glob("member-*")))
    first.write_text("the user's own notes")
    ensemble(3).save(tmp_path)
    assert first.read_text() == "the user's own notes"
    assert not second.exists()


def test_links_that_a_manifest_names_are_neither_read_nor_deleted(tmp_path):
    folder, other = tmp_path / "members", tmp_path / "elsewhere.safetensors"
    ensemble(1).save(folder)
    [member] = folder.glob("member-*")
    os.rename(member, other)
    member.symlink_to(other)
    for attempt in (lambda: tw.Ensemble.load(folder, network(0)), lambda: ensemble(2).save(folder)):
        with pytest.raises(tw.ThalwegError, match=r"member-\w+\.safetensors is a link"):
            attempt()
    assert other.exists()
    assert member.is_symlink()


def test_only_a_file_of_ours_is_removed_and_no_link_to_one(tmp_path):
    ours, other, link, folder, notes = (tmp_path / name for name in ("ours", "other", "link", "folder", "notes"))
    files.save_tensors(ours, "state", {}, {})
    files.save_tensors(other, "weights", {}, {})
    files.save_tensors(tmp_path / "elsewhere", "state", {}, {})
    link.symlink_to(tmp_path / "elsewhere")
    folder.mkdir()
    notes.write_text("mine")
    for path in (ours, other, link, folder, notes, tmp_path / "nowhere"):
        files.remove(path, "state")
    assert {path.name for path in tmp_path.iterdir()} == {"other", "link", "folder", "notes", "elsewhere"}
    assert link.is_symlink()


def test_finished_run_leaves_a_link_in_place_of_its_state(tmp_path):
    def fit():
        batches = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]
        return tw.fit(network(1), tw.classification(), batches, epochs=1, lr=0.1, run=tmp_path / "run")

    fit()
    files.save_tensors(tmp_path / "elsewhere.safetensors", "state", {}, {})
    (tmp_path / "run" / "state.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    fit()
    assert (tmp_path / "run" / "state.safetensors").is_symlink()
    assert (tmp_path / "elsewhere.safetensors").is_file()


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
@pytest.mark.parametrize("kind", [tw.Weights, Checkpoint])
def test_base_is_a_file_next_to_the_weights(kind, name, tmp_path):
    weights = tw.Weights.of(adapted(1))
    (weights if kind is tw.Weights else Checkpoint(weights, {}, "SGD", 1)).save(tmp_path / "w.safetensors", apart=True)
    saved_as = files.kind_of(tmp_path / "w.safetensors")
    tensors, about = files.load_tensors(tmp_path / "w.safetensors", saved_as)
    files.save_tensors(tmp_path / "w.safetensors", saved_as, tensors, {**about, "base": name})
    with pytest.raises(tw.ThalwegError, match=r"w\.safetensors may name only files next to it"):
        kind.load(tmp_path / "w.safetensors")


def test_base_is_not_read_or_written_through_a_link(tmp_path):
    weights = tw.Weights.of(adapted(1))
    weights.save(tmp_path / "w.safetensors", apart=True)
    [base] = tmp_path.glob("base-*")
    (tmp_path / "moved").write_bytes(base.read_bytes())
    base.unlink()
    base.symlink_to(tmp_path / "moved")
    with pytest.raises(tw.ThalwegError, match=r"base-\w+\.safetensors is a link"):
        tw.Weights.load(tmp_path / "w.safetensors")
    weights.save(tmp_path / "w.safetensors", apart=True)
    assert not base.is_symlink()
    assert tw.Weights.load(tmp_path / "w.safetensors").digest() == weights.digest()


def test_kept_epoch_is_not_read_through_a_link(tmp_path):
    def fit():
        batches = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]
        return tw.fit(network(1), tw.classification(), batches, epochs=1, lr=0.1, keep=[1], run=tmp_path / "run")

    fit()
    (tmp_path / "run" / "kept-1.safetensors").rename(tmp_path / "moved.safetensors")
    (tmp_path / "run" / "kept-1.safetensors").symlink_to(tmp_path / "moved.safetensors")
    with pytest.raises(tw.ThalwegError, match=r"kept-1\.safetensors is a link"):
        fit()


NOT_WHOLE = "is not a file that thalweg wrote whole"
CRAFTED = {
    "dtype": (lambda about: about["layout"].update(dtype="nn"), rf"{NOT_WHOLE} \(TypeError: 'dtype' is not a dtype"),
    "shapes": (
        lambda about: about["layout"].update(shapes=[[-1], [2**60]]),
        rf"{NOT_WHOLE} \(ValueError: 'weight' must be \(-1,\)",
    ),
    "no layout": (lambda about: about.pop("layout"), rf"{NOT_WHOLE} \(KeyError: 'layout'"),
    "names": (lambda about: about["layout"].update(names="ab"), rf"{NOT_WHOLE} \(TypeError: 'names' is not a tuple"),
    "made": (lambda about: about.update(made=3), "cannot be used: made must be Mapping"),
}


@pytest.mark.parametrize(("change", "said"), CRAFTED.values(), ids=CRAFTED)
def test_crafted_weights_with_a_right_hash_are_refused(change, said, tmp_path):
    path = tmp_path / "w.safetensors"
    tw.Weights.of(network(1)).save(path)
    tensors, about = files.load_tensors(path, "weights")
    change(about)
    files.save_tensors(path, "weights", tensors, about)
    with pytest.raises(tw.ThalwegError, match=rf"w\.safetensors {said}"):
        tw.Weights.load(path)


def test_crafted_curve_with_many_points_is_refused_at_once(tmp_path):
    path = tmp_path / "c.safetensors"
    tw.Bezier(tw.Weights.of(network(1)), tw.Weights.of(network(2))).save(path)
    tensors, about = files.load_tensors(path, "curve")
    files.save_tensors(path, "curve", tensors, {**about, "points": 10**18})
    with pytest.raises(tw.ThalwegError, match=r"c\.safetensors .* not those of 1000000000000000000 points"):
        tw.Curve.load(path)


def test_crafted_state_is_refused(tmp_path):
    def fit(task):
        batches = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))] * 3
        return tw.fit(network(1), task, batches, epochs=3, lr=0.1, run=Run(tmp_path / "run", every=1))

    seen = []

    def stop(outputs, targets):
        seen.append(1)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return tw.classification().loss(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        fit(tw.Task(stop, tw.classification().predict))
    path = tmp_path / "run" / "state.safetensors"
    tensors, about = files.load_tensors(path, "state")
    for key in about.keys() - {"t"}:  # which those of 0.1.0 do not have
        files.save_tensors(path, "state", tensors, {name: value for name, value in about.items() if name != key})
        with pytest.raises(tw.ThalwegError, match=r"state\.safetensors is not a file that thalweg wrote whole"):
            fit(tw.Task(tw.classification().loss, tw.classification().predict))


def test_crafted_state_names_no_network_elsewhere(tmp_path):
    """A file that would be read through a folder of that name."""
    batches, seen = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))] * 2, []

    def loss(outputs, targets):
        seen.append(1)
        if len(seen) == 12:
            raise KeyboardInterrupt
        return tw.classification().loss(outputs, targets)

    def go():
        run, task = Run(tmp_path / "run", every=1), tw.Task(loss, tw.classification().predict)
        return tw.fit(network(1), task, batches, epochs=9, lr=0.1, keep=[1], run=run)

    with pytest.raises(KeyboardInterrupt):
        go()
    [path] = (tmp_path / "run").rglob("state.safetensors")
    tensors, about = files.load_tensors(path, "state")
    assert about["observer"] == {"dict": [["kept", [1]]]}
    (path.parent / "kept-1.safetensors").rename(tmp_path / "victim.safetensors")
    (path.parent / "kept-1").mkdir()
    about["observer"]["dict"][0][1] = ["1/" + os.path.relpath(tmp_path / "victim", path.parent / "kept-1")]
    files.save_tensors(path, "state", tensors, about)
    with pytest.raises(tw.ThalwegError, match=r"state\.safetensors is not a file that thalweg wrote whole"):
        go()


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"thalweg": ' + "1" * 5000 + "}", "\ufffe", ""])
def test_monstrous_json_is_refused(text, tmp_path):
    (tmp_path / "scan.json").write_text(text)
    for read in (lambda: tw.Scan.load(tmp_path / "scan.json"), lambda: page.write(tmp_path / "p.html", [tmp_path])):
        with pytest.raises(tw.ThalwegError, match=r"scan\.json is not a whole JSON file"):
            read()


@pytest.mark.parametrize("key", ["thalweg", "format", "sha256", "content"])
def test_damaged_mark_does_not_make_a_result_foreign(key, tmp_path):
    curve().save(tmp_path / "a" / "scan.json")
    curve().save(tmp_path / "b" / "scan.json")
    path = tmp_path / "b" / "scan.json"
    path.write_text(path.read_text().replace(f'"{key}"', f'"{key[:-1]}"'))
    with pytest.raises(tw.ThalwegError, match=r"b/scan\.json"):
        page.write(tmp_path / "page.html", [tmp_path])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("thalweg", "is damaged or was edited"),
        ("about", "is damaged or was edited"),
        ("sha256", "is damaged or was edited"),
        ("format", "has format None; this thalweg reads format 1"),
    ],
)
def test_damaged_mark_does_not_make_weights_foreign(key, said, tmp_path):
    path = tmp_path / "w.safetensors"
    tw.Weights.of(network(1)).save(path)
    path.write_bytes(path.read_bytes().replace(f'"{key}"'.encode(), f'"{key[:-1]}_"'.encode()))
    with pytest.raises(tw.ThalwegError, match=rf"w\.safetensors {said}"):
        tw.Weights.load(path, network(0))


def measured(run):
    a, b = (tw.Weights.of(nn.Linear(2, 3)) for _ in range(2))
    data = [(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]))]
    return tw.scan(nn.Linear(2, 3), tw.Segment(a, b), tw.classification(), data, points=2, run=run)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"thesis.tex": "mine"}, "already exists and is never overwritten: choose another"),
        ({"thesis.tex": "mine", "run.json": "{}"}, "run.json must be a run file, but thalweg did not write it"),
        ({"run.json": '{"epochs": 3}'}, "run.json must be a run file, but thalweg did not write it"),
        (
            {"run.json": "not JSON"},
            "run.json is not a whole JSON file .*, or thalweg did not write it",
        ),
        (
            {".lock": "4711\n"},
            r"\.lock belongs to another program, since it begins with '4711\\n': choose another folder",
        ),
        ({"scan.json": "{}"}, "already exists and is never overwritten: choose another"),
    ],
)
def test_foreign_folder_that_is_refused_is_left_as_it_was(files, said, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(tw.ThalwegError, match=said):
        measured(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".lock", r"\.lock is a pipe or a device"),
        ("points.jsonl", "already exists and is never overwritten"),
        ("run.json", r"run\.json is not a file"),
        ("scan.json", "already exists and is never overwritten"),
    ],
)
def test_pipes_in_a_folder_are_refused_and_not_waited_for(name, said, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(tw.ThalwegError, match=said):
        measured(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [name] * (name != ".lock")


@pytest.mark.parametrize("change", [lambda scan: scan.pop("length"), lambda scan: scan.update(kind="plane")])
def test_crafted_scan_of_a_curve_without_its_lengths_is_refused(change, tmp_path):
    measured(tmp_path)
    edit_json(tmp_path / "scan.json", "scan", change)
    with pytest.raises(tw.ThalwegError, match=r"scan\.json .*its values are not one per point"):
        tw.Scan.load(tmp_path)
