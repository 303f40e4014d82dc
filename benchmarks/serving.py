"""A batch of one through `Ensemble.probabilities`, against the members' forward passes as a plain loop.

$ python benchmarks/serving.py

Blocks of both alternate; printed are the medians over blocks of the medians within them, and the median of the ratios.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import thalweg as tw

MEMBERS, BLOCKS = 5, 9
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two layers": (lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), (64,)),
    "digits_net": (tw.models.digits_net, (1, 8, 8)),
    "vgg16_bn": (lambda: tw.models.vgg16_bn(classes=100), (3, 32, 32)),
    "preresnet164": (lambda: tw.models.preresnet164(classes=100), (3, 32, 32)),
}


def timed(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Milliseconds of one call, the median over some time."""
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def measured(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> str:
    networks = [make().eval() for _ in range(MEMBERS)]
    ensemble, image = tw.Ensemble(make(), [tw.Weights.of(net) for net in networks]), torch.randn(1, *shape)
    task, batches = tw.classification(), [(image, torch.zeros(1, dtype=torch.long))]

    def loop() -> torch.Tensor:
        with torch.no_grad():
            return torch.stack([net(image).softmax(1) for net in networks]).mean(0)

    assert torch.allclose(ensemble.probabilities(image).probabilities, loop(), atol=1e-6)
    calls = (loop, lambda: ensemble.probabilities(image), lambda: ensemble.predict(task, batches))
    blocks = [[timed(call) for call in calls] for _ in range(BLOCKS)]
    by_hand, served, predicted = (statistics.median(column) for column in zip(*blocks, strict=True))
    ratio = statistics.median(b / a for a, b, _ in blocks)
    return f"plain loop {by_hand:.3g} ms, probabilities {served:.3g} ms, {ratio:.2f} times; predict {predicted:.3g} ms"


def main() -> None:
    for name, (make, shape) in NETWORKS.items():
        print(f"{MEMBERS} x {name}: {measured(make, shape)}")


if __name__ == "__main__":
    main()
