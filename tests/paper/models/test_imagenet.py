"""Where ResNet-50 comes from."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from thalweg import models


class FakeResNet(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options, self.fc = options, nn.Linear(8, 1000)


@pytest.fixture
def torchvision(monkeypatch):
    module = ModuleType("torchvision")
    module.models = SimpleNamespace(resnet50=FakeResNet)
    monkeypatch.setitem(sys.modules, "torchvision", module)


@pytest.fixture
def timm(monkeypatch):
    module = ModuleType("timm")
    module.create_model = lambda name, **options: FakeResNet(name=name, **options)
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.fixture
def no_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)


@pytest.mark.usefixtures("torchvision", "timm")
def test_imagenet_network_of_torchvision_comes_first():
    assert models.resnet50().options == {"weights": None}
    assert models.resnet50(pretrained=True).options == {"weights": "IMAGENET1K_V1"}


@pytest.mark.usefixtures("torchvision")
def test_imagenet_network_with_other_classes_gets_a_new_last_layer():
    last = models.resnet50(classes=5, pretrained=True).fc
    assert (last.in_features, last.out_features) == (8, 5)


@pytest.mark.usefixtures("no_torchvision", "timm")
def test_imagenet_network_of_timm_comes_second():
    assert models.resnet50(classes=5).options == {"name": "resnet50.tv_in1k", "pretrained": False, "num_classes": 5}


@pytest.mark.usefixtures("timm")
def test_imagenet_network_skips_a_broken_torchvision(monkeypatch, tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert models.resnet50().options["name"] == "resnet50.tv_in1k"


@pytest.mark.usefixtures("no_torchvision")
def test_imagenet_network_without_torchvision_and_timm_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ValueError, match="from torchvision or timm; neither can be imported here: pip install torchvision"
    ):
        models.resnet50()
