"""Averaged networks and ensembles through ONNX Runtime, against the networks themselves."""

import pytest
import torch
from torch import nn

import thalweg as tw

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter itself


def convolutional(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


def attentive(seed):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(6, 16), layer, nn.Flatten(), nn.Linear(7 * 16, 5))


NETWORKS = {"convolutional": (convolutional, (3, 8, 8)), "attentive": (attentive, (7, 6))}


@pytest.fixture(params=NETWORKS)
def kind(request):
    make, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    x = torch.randn(24, *shape)
    batches = list(zip(x.split(8), torch.randint(5, (24,)).split(8), strict=True))
    task = tw.classification()
    members = [tw.fit(make(0), task, batches, epochs=2, lr=0.05, seed=seed) for seed in range(3)]
    return make, task, batches, members


def in_runtime(module, x, folder):
    """The exported file, for any number of inputs."""
    shapes = torch.export.ShapesCollection()
    shapes[x] = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(module, (x,), dynamic_shapes=shapes)
    torch.onnx.export(program, verbose=False).save(folder / "program.onnx")
    session = onnxruntime.InferenceSession(folder / "program.onnx")
    return lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def check(module, batches, folder):
    x = torch.cat([inputs for inputs, _ in batches])
    program = in_runtime(module, x[:5], folder)
    with torch.no_grad():
        for count in (1, 2, len(x)):
            torch.testing.assert_close(program(x[:count]), module(x[:count]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["average", "soup"])
def test_averaged_network_exports_to_onnx(kind, how, tmp_path):
    make, task, batches, members = kind
    if how == "soup":
        mean = tw.soup(make(1), members, task, batches, how="uniform", bn_batches=batches)
    else:
        mean = tw.Ensemble(make(1), members).average(task, batches)
    network = make(1)
    mean.load_into(network)
    check(network.eval(), batches, tmp_path)


def test_calibrated_ensemble_exports_to_onnx(kind, tmp_path):
    make, _, batches, members = kind
    ensemble = tw.Ensemble(make(1), members)
    ensemble.temperature = 1.7
    check(ensemble.as_module(), batches, tmp_path)
