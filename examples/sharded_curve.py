"""A curve between two networks of which no process holds a whole one, with `fully_shard`.

    torchrun --nproc-per-node 2 examples/sharded_curve.py

The arithmetic of a curve is element by element: each process keeps its shards of the ends and of the bend, writes its
shard of phi(t) into the network, and hands its shard of the gradient on. Checked against `thalweg.connect`, which holds
everything whole.

What it showed (2 cores, torch 2.13.0, 2026-11-15): after 50 steps in 2 processes the bend is off by 6.6e-17 from
`connect`'s; each process keeps half of the curve; a step takes 47 ms in shards, 28 ms with whole networks.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import thalweg as tw

STEPS, LR, DECAY, SEED = 50, 0.05, 1e-3, 3


def make(seed):
    torch.manual_seed(seed)
    layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(50, 64), *layers, nn.Flatten(), nn.Linear(16 * 64, 5)).double()


def batches():
    torch.manual_seed(0)
    return [(torch.randint(50, (16, 16)), torch.randint(5, (16,))) for _ in range(10)]


class ShardedBend:
    """One bend between two ends, in shards: what `thalweg.connect` does, for parameters that are DTensors."""

    def __init__(self, network, curve):
        self.network, self.curve = network, curve
        self.parameters = list(network.parameters())
        self.start, self.bend, self.end = (self.shards_of(point) for point in curve.points)
        self.momenta = [torch.zeros_like(shard) for shard in self.bend]
        self.coefficients = None

    def shards_of(self, weights):
        """This process's part of every tensor; a very large network would be read from its file shard by shard."""
        whole = weights.state_dict()
        return [
            dist.tensor.distribute_tensor(whole[name], parameter.device_mesh, parameter.placements).to_local().clone()
            for name, parameter in self.network.named_parameters()
        ]

    @torch.no_grad()
    def place(self, t):
        a, b, c = self.coefficients = self.curve.coefficients(t).tolist()
        for parameter, start, bend, end in zip(self.parameters, self.start, self.bend, self.end, strict=True):
            parameter.to_local().copy_(a * start + b * bend + c * end)

    @torch.no_grad()
    def update(self, lr):
        for parameter, bend, momentum in zip(self.parameters, self.bend, self.momenta, strict=True):
            at_phi = parameter.grad.to_local() + DECAY * parameter.to_local()
            momentum.mul_(0.9).add_(at_phi, alpha=self.coefficients[1])
            bend.sub_(momentum, alpha=lr)
            parameter.grad = None

    def whole(self):
        """Gathered, for the comparison."""
        tensors = [
            dist.tensor.DTensor.from_local(
                bend, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )
            for bend, parameter in zip(self.bend, self.parameters, strict=True)
        ]
        return torch.cat([tensor.full_tensor().reshape(-1) for tensor in tensors])


def train_sharded(curve, draws):
    network = make(0)
    for layer in network[1:5]:
        fully_shard(layer)
    fully_shard(network)
    bend, rank, size = ShardedBend(network, curve), dist.get_rank(), dist.get_world_size()
    data, began = batches(), time.perf_counter()
    for step, t in enumerate(draws):
        bend.place(t)
        x, y = (tensor.chunk(size)[rank] for tensor in data[step % len(data)])
        # in which the processes' gradients are averaged, and each gets its shard
        F.cross_entropy(network(x), y).backward()
        bend.update(LR)
    return bend, (time.perf_counter() - began) / STEPS


def train_whole(curve):
    """The same by thalweg, and the t it draws."""
    from thalweg.training.step import UniformBends

    draws, before = [], UniformBends.draw

    def noted(self):
        numbers = before(self)
        draws.append(self.t)
        return numbers

    UniformBends.draw = noted
    began = time.perf_counter()
    settings = {"epochs": STEPS // 10, "schedule": lambda i: LR, "weight_decay": DECAY, "seed": SEED, "progress": False}
    found = tw.connect(make(0), curve, tw.classification(), batches(), same_t=True, **settings)
    return found, draws, (time.perf_counter() - began) / STEPS


def main():
    torch.set_num_threads(1)
    a, b = (tw.Weights.of(make(seed)) for seed in (1, 2))
    with tw.distributed() as processes:
        found, draws, whole_time = train_whole(tw.Bezier(a, b))
        sharded, time_of_step = train_sharded(tw.Bezier(a, b), draws)
        off = float((sharded.whole() - found.bends[0].vector).norm() / found.bends[0].vector.norm())
        own = sum(
            shard.numel() for shards in (sharded.start, sharded.bend, sharded.end, sharded.momenta) for shard in shards
        )
        if processes.first:
            print(f"{processes.size} processes, {STEPS} steps: the bend is off by {off:.1e} from that of connect")
            print(
                f"numbers kept per process for the curve: {own:,}, {own / (4 * a.vector.numel()):.2f} of four whole "
                "vectors"
            )
            print(f"a step takes {1e3 * time_of_step:.1f} ms in shards, {1e3 * whole_time:.1f} ms with whole networks")


if __name__ == "__main__":
    if "RANK" not in os.environ:
        raise SystemExit(f"start it with torchrun: {__doc__.splitlines()[2].strip()}")
    main()
