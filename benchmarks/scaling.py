"""Scaling of a data parallel step to 1,024 GPUs: a simulation of compute, buckets, latency and bandwidth.

No GPU is needed: the figures of the machine are parameters. The schedule is that of op-tree's plans. The backward pass
goes from the last layer to the first. The sum of a bucket begins after its last gradient. Sums run in order, on a
stream of their own, and the update waits for all of them. If the state is sharded, a rank waits for a bucket's sum
after the next sum has begun, updates its part, and begins to gather the new weights, during the backward pass
(`optree.compile.aliasing.moments`).
"""

from __future__ import annotations

import argparse
from importlib import import_module
from math import ceil, log, log2, sqrt
from pathlib import Path
from typing import NamedTuple

from optree.distributed.group import bucket_of

MIB = 1 << 20


class Machine(NamedTuple):
    """A cluster.

    Attributes
    ----------
    flops : float
        Of a GPU, a second, in a network's products: a part of its peak.
    memory : float
        Bytes a second of its memory.
    node : int
        GPUs of a node.
    inside, outside : float
        Bytes a second and GPU, one way, within a node and between nodes.
    hop_inside, hop_outside : float
        Seconds of a hop: a message of no bytes, the launch of its part of the operation included.
    launch : float
        Seconds of beginning an operation.
    jitter : float
        The standard deviation of a GPU's time for the same work, as a part of it.
    """

    flops: float = 400e12
    memory: float = 2.7e12
    node: int = 8
    inside: float = 360e9
    outside: float = 40e9
    hop_inside: float = 2e-6
    hop_outside: float = 7e-6
    launch: float = 10e-6
    jitter: float = 0.01


class Model(NamedTuple):
    """A network whose gradients come evenly throughout the backward pass.

    Attributes
    ----------
    weights : int
    flops : float
        Of a GPU's part of a batch, forward; backward takes twice as many.
    """

    weights: int
    flops: float


#: By name. A transformer takes 2 operations a weight and token forward, of 16,384 tokens here; ResNet-50 8.2 Gflop an
#: image, of 256, at a third of a product's speed.
MODELS = {
    "transformer, 1.3e9 weights": Model(1_300_000_000, 2 * 1.3e9 * 16384),
    "ResNet-50, 2.6e7 weights": Model(25_600_000, 3 * 8.2e9 * 256),
}

#: Bytes of a gradient's element: sums are of float32; and of a weight's that is gathered, in bfloat16.
ELEMENT, GATHERED = 4, 2

#: Bytes that AdamW reads and writes for a weight: four arrays and three.
UPDATE = 7 * ELEMENT


def ring(size: float, ranks: int, speed: float, hop: float) -> float:
    """Seconds of a reduce-scatter, or of an all-gather, around a ring."""
    return (ranks - 1) / ranks * size / speed + (ranks - 1) * hop


def tree(size: float, ranks: int, speed: float, hop: float) -> float:
    """Half the seconds of a sum by a double binary tree, each tree of which carries half of the bytes."""
    return size / speed + ceil(log2(ranks)) * hop


def half_seconds(size: float, ranks: int, machine: Machine, trees: bool = True) -> float:
    """Seconds of half a sum, a reduce-scatter or an all-gather: within nodes, then between the same GPUs of nodes.

    Between nodes it is the quicker of a ring and, where that is possible, trees.
    """
    here, nodes = min(ranks, machine.node), ceil(ranks / machine.node)
    seconds = ring(size, here, machine.inside, machine.hop_inside)
    if nodes > 1:
        arguments = size / here, nodes, machine.outside, machine.hop_outside
        seconds += min(ring(*arguments), tree(*arguments)) if trees else ring(*arguments)
    return seconds


def agreement_seconds(ranks: int, machine: Machine) -> float:
    """Seconds in which ranks compare their next operation: a sum of 16 bytes by a tree."""
    here, nodes = min(ranks, machine.node), ceil(ranks / machine.node)
    return 2 * (ceil(log2(here)) * machine.hop_inside + ceil(log2(nodes)) * machine.hop_outside)


class Timeline(NamedTuple):
    """A simulated step.

    Attributes
    ----------
    seconds : float
    waiting : float
        The part of it in which GPUs wait for sums, or for the slowest GPU.
    operations : int
        The number of buckets.
    """

    seconds: float
    waiting: float
    operations: int


class _Step:
    """A step in progress: the time that the GPU's computation, and its operations, have reached.

    Attributes
    ----------
    now, free : float
        Seconds from the beginning, of the computation and of the operations, which run in order.
    """

    def __init__(self, ranks: int, machine: Machine, trees: bool) -> None:
        self.ranks, self.machine, self.trees = ranks, machine, trees
        self.now = self.free = 0.0

    def begin(self, size: float, halves: int) -> float:
        """Begin an operation on `size` bytes; return the time of its end."""
        if self.ranks > 1:
            begin = max(self.now, self.free) + self.machine.launch + agreement_seconds(self.ranks, self.machine)
            self.free = begin + halves * half_seconds(size, self.ranks, self.machine, self.trees)
        return max(self.now, self.free)

    def update(self, size: float, summed: float, shards: bool) -> None:
        """Wait for a sum of gradients and update the weights; if sharded, update a part and begin its gather."""
        self.now = max(self.now, summed)
        self.now += size / ELEMENT * UPDATE / (self.ranks if shards else 1) / self.machine.memory
        if shards:
            self.begin(size / ELEMENT * GATHERED, 1)


def simulate(
    model: Model,
    ranks: int,
    bucket: float,
    machine: Machine,
    overlaps: bool = True,
    shards: bool = False,
    trees: bool = True,
) -> Timeline:
    """A step, bucket by bucket."""
    slowest = 1 + machine.jitter * sqrt(2 * log(ranks))  # the expected largest of normal numbers, about
    forward, size = model.flops / machine.flops * slowest, model.weights * ELEMENT
    step, shards = _Step(ranks, machine, trees), shards and ranks > 1
    step.now = forward if overlaps else 3 * forward
    parts = [bucket] * int(size // bucket) + [size % bucket] * (size % bucket > 0)
    waiting = list[tuple[float, float]]()  # sums that have begun: their bytes, and their ends
    for part in parts:
        step.now += 2 * forward * part / size if overlaps else 0.0
        waiting.append((part, step.begin(part, 1 if shards else 2)))
        if shards and overlaps and len(waiting) > 1:
            step.update(*waiting.pop(0), shards)
    for each in waiting:
        step.update(*each, shards)
    end = max(step.now, step.free)
    if shards:  # new weights are copied from where they were gathered
        end += model.weights * 2 * GATHERED / machine.memory
    alone = 3 * model.flops / machine.flops + model.weights * UPDATE / machine.memory
    return Timeline(end, max(0.0, end - alone), len(parts))


def best_bucket(model: Model, ranks: int, machine: Machine) -> float:
    """The size of the quickest bucket in bytes, a power of two."""
    sizes = [MIB * 2.0**i for i in range(14)]
    return min(sizes, key=lambda size: simulate(model, ranks, size, machine).seconds)


def chosen(model: Model, ranks: int) -> int:
    """The bytes of op-tree's buckets."""
    return bucket_of(ranks, model.weights * ELEMENT)


#: The ways of a step that the table compares: their names, and from the bytes of op-tree's buckets to what `simulate`
#: is told.
WAYS = {
    "after the backward pass": lambda size: {"bucket": size, "overlaps": False},
    "buckets of 1 MiB": lambda size: {"bucket": MIB},
    "buckets of 4 MiB": lambda size: {"bucket": 4 * MIB},
    "op-tree's buckets": lambda size: {"bucket": size},
    "the same, rings alone": lambda size: {"bucket": size, "trees": False},
    "the same, state sharded": lambda size: {"bucket": size, "shards": True},
}

RANKS = (1, 8, 64, 256, 1024)


def table(model: Model, machine: Machine) -> dict[str, list[float]]:
    """The efficiency of each way for each number of GPUs: the time of one GPU divided by that of a step."""
    alone = simulate(model, 1, MIB, machine).seconds
    return {
        name: [alone / simulate(model, n, machine=machine, **way(chosen(model, n))).seconds for n in RANKS]  # type: ignore[arg-type]
        for name, way in WAYS.items()
    }


def draw(tables: dict[str, dict[str, list[float]]], path: Path) -> None:
    """A chart of the efficiencies."""
    figure = import_module("matplotlib.figure").Figure(figsize=(10, 4), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        for way, values in rows.items():
            axes.plot(RANKS, values, marker="o", label=way)
        axes.set(title=name, xlabel="GPUs", ylabel="efficiency", xscale="log", ylim=(0, 1.05))
        axes.set_xticks(RANKS, map(str, RANKS))
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in Machine()._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"see Machine ({value:g})")
    parser.add_argument("--picture", type=Path, help="the file of a picture")
    options = vars(parser.parse_args(arguments))
    picture = options.pop("picture")
    machine = Machine(**options)
    print(", ".join(f"{name} {value:g}" for name, value in machine._asdict().items()))
    tables = {}
    for name, model in MODELS.items():
        tables[name] = table(model, machine)
        one = simulate(model, 1, MIB, machine).seconds
        print(f"\n{name}: {one * 1e3:.1f} ms on one GPU; efficiency on" + "".join(f"{n:>8}" for n in RANKS))
        for way, values in tables[name].items():
            print(f"  {way:38}" + "".join(f"{value:8.3f}" for value in values))
        steps = [simulate(model, n, chosen(model, n), machine) for n in RANKS]
        best = [best_bucket(model, n, machine) for n in RANKS]
        print(f"  {'its wait, in ms':38}" + "".join(f"{each.waiting * 1e3:8.1f}" for each in steps))
        print(f"  {'its buckets, in MiB':38}" + "".join(f"{chosen(model, n) / MIB:8.0f}" for n in RANKS))
        print(f"  {'the quickest buckets, in MiB':38}" + "".join(f"{size / MIB:8.0f}" for size in best))
    if picture is not None:
        draw(tables, picture)


if __name__ == "__main__":
    main()
