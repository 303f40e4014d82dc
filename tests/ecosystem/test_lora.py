"""A peft adapter: only it moves, and its base is checked, held once and stored once."""

import peft
import pytest
import torch
from library_models import KINDS, bert
from typer.testing import CliRunner

import thalweg as tw
from thalweg.cli import app

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
LORA = KINDS["peft, LoRA"]


def wide(seed):
    """A base of a size that shows, with an adapter."""
    torch.manual_seed(7)
    base = bert(hidden_size=96, intermediate_size=384)
    torch.manual_seed(seed)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def test_lora_only_the_adapter_moves():
    module = LORA.module(1)
    weights = tw.Weights.of(module)
    assert all("lora_" in name or "modules_to_save" in name for name in weights.layout.names)
    assert not any("lora_" in name for name in weights.layout.frozen)
    trained = tw.fit(module, LORA.task(module), LORA.batches(), **{**LORA.settings(), "epochs": 1})
    assert trained.distance(weights) > 0
    assert all(trained.frozen[name] is weights.frozen[name] for name in weights.layout.frozen)


def test_lora_refuses_another_base_by_the_name_of_its_tensor():
    one, two = LORA.module(1), LORA.module(2)
    with torch.no_grad():
        two.base_model.model.bert.encoder.layer[1].attention.self.query.base_layer.weight[0, 0] += 1
    with pytest.raises(
        tw.ThalwegError, match=r"frozen parameter '.*layer\.1\.attention\.self\.query\.base_layer\.weight' differs"
    ):
        tw.Segment(tw.Weights.of(one), tw.Weights.of(two))


def test_lora_base_is_held_and_stored_once(tmp_path):
    a, b = (tw.Weights.of(wide(seed)) for seed in (1, 2))
    base, adapter = size(a.frozen.values()), a.vector.nbytes
    assert base > 50 * adapter
    curve = tw.Bezier(a, b, bends=3)
    held = [t for point in curve.points for t in (point.vector, *point.frozen.values())]
    assert size({t.data_ptr(): t for t in held}.values()) == base + 5 * adapter
    curve.save(tmp_path / "curve.safetensors")
    assert (tmp_path / "curve.safetensors").stat().st_size < 1.1 * (base + 5 * adapter)
    tw.Ensemble(wide(0), [curve.point(t / 4) for t in range(5)]).save(tmp_path / "ensemble")
    assert sum(path.stat().st_size for path in (tmp_path / "ensemble").glob("*.safetensors")) < 1.1 * (
        base + 5 * adapter
    )


def test_lora_trained_adapter_goes_back_into_peft(tmp_path):
    """What peft itself saves and loads of the model at a point of the curve."""
    module, batches = LORA.module(1), LORA.batches()
    weights = tw.fit(module, LORA.task(module), batches, **{**LORA.settings(), "epochs": 2})
    weights.load_into(module)
    module.save_pretrained(tmp_path)
    torch.manual_seed(0)
    again = peft.PeftModel.from_pretrained(bert(), tmp_path, is_trainable=True)
    found = tw.scan(LORA.module(0), [weights, tw.Weights.of(again)], LORA.task(module), {"train": batches})
    assert found.values["train"]["loss"][0] == found.values["train"]["loss"][1]


TASK = """
from library_models import KINDS

def adapter(seed):
    kind = KINDS["peft, LoRA"]
    model, batches = kind.module(seed), kind.batches()
    return dict(model=model, task=kind.task(model), train=batches, data={"train": batches})
"""


def test_lora_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "adapted.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)

    def thalweg(*arguments):
        done = CliRunner().invoke(app, [*arguments, "--task", "adapted:adapter", "--quiet"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    thalweg("fit", "--runs", "2", "--epochs", "20", "--lr", "0.1", "--out", "ends")
    thalweg("connect", "ends/seed-0", "ends/seed-1", "--epochs", "30", "--lr", "0.1", "--out", "curve")
    thalweg("scan", "curve", "--points", "7", "--out", "bent")
    thalweg("scan", "ends/seed-0", "ends/seed-1", "--points", "7", "--out", "straight")
    barriers = [
        tw.Scan.load(f"{name}/scan.json").summary()["train"]["loss"]["barrier"] for name in ("straight", "bent")
    ]
    assert barriers[0] > 0.1
    assert barriers[1] < 0.3 * barriers[0]
    thalweg("walk", "--start", "ends/seed-0", "--cycle", "1", "--epochs", "2", "--out", "walk")
    thalweg("ensemble", "walk", "ends/seed-1", "--out", "ensemble")
    assert len(list((tmp_path / "ensemble").rglob("member-*.safetensors"))) == 3
    assert len(list((tmp_path / "ensemble").rglob("base-*.safetensors"))) == 1
