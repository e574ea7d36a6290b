"""The table of benchmarks/gpu.md: what a card would make of each workload, by `tests/golden/counts.txt` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.counts import HEAD, THREADS

#: The dtypes of a row: the first in full, of the others the share alone.
DTYPES = ("float32", "float16", "bfloat16")

#: Workloads whose rows all read the same vectors, which caches hold, with the vectors' share of the least bytes. Rows
#: of odd lengths read each element of a vector twice, in two aligned accesses.
OF_VECTORS = {"add_row": 0.5, "layer_norm-50257": 2.0, "layer_norm": 1.0}

#: Blocks that wait at the same time for memory leave it idle; two or more take turns.
FEW_BLOCKS = 1

TITLE = (
    "| rows or arrays | bytes moved, least | float | integer | slow | memory | all | registers | blocks | float32 | "
    "float16 | bfloat16 | what follows, in float32 |"
)

Rows = Mapping[str, Sequence[Sequence[str]]]


def table_of(rows: Rows) -> list[str]:
    """The lines of the table: the workloads that are counted in every dtype."""
    names = dict.fromkeys(name.removesuffix("-float32") for name in rows if name.endswith("-float32"))
    lines = [TITLE, "|" + "---|" * TITLE.count(" | ") + "---|"]
    for name in names:
        lines.append(_line(name, [_launches(rows[f"{name}-{dtype}"]) for dtype in DTYPES]))
    return lines


def _launches(rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The launches on the largest arrays; those on a number for each row take no time beside them."""
    found = [dict(zip(HEAD, row, strict=True)) for row in rows]
    return [each for each in found if each["least"] == found[0]["least"]]


def _line(name: str, found: Sequence[Sequence[Mapping[str, str]]]) -> str:
    vectors = next((share for each, share in OF_VECTORS.items() if name.startswith(each)), 0.0)
    launches, least, pipes = found[0], float(found[0][0]["least"]), ("float", "integer", "slow", "memory", "all")
    moved = sum(_moved(each, vectors) for each in launches)
    counts = [f"{sum(float(each[pipe]) for each in launches):.1f}" for pipe in pipes]
    largest = max(launches, key=lambda each: float(each["all"]))
    blocks = int(largest["warps"]) * 32 // int(largest["block"])
    shares = [f"{100 * _share(each, vectors):.0f} %" for each in found]
    cells = [name.replace("_", " "), f"{moved:.1f}, {least:.1f}", *counts, largest["registers"], str(blocks), *shares]
    return f"| {' | '.join([*cells, _follows(largest, moved / least, blocks, vectors)])} |"


def _moved(launch: Mapping[str, str], vectors: float) -> float:
    """Bytes for each element; those of vectors come from caches."""
    moved, least = float(launch["loaded"]) + float(launch["stored"]), float(launch["least"])
    return max(least, moved - vectors * least) if vectors else moved


def _busy(launch: Mapping[str, str], vectors: float) -> float:
    """The least time of its instructions, as a share of memory's time."""
    return float(launch["busy"]) * (_moved(launch, 0) / _moved(launch, vectors) if vectors else 1)


def _share(launches: Sequence[Mapping[str, str]], vectors: float) -> float:
    """The share of the memory's bandwidth at which the least bytes would go through, nothing of latency in it."""
    times = (_moved(each, vectors) * max(1.0, _busy(each, vectors)) for each in launches)
    return float(launches[0]["least"]) / sum(times)


def _follows(launch: Mapping[str, str], again: float, blocks: int, vectors: float) -> str:
    """The bound of a launch that takes most instructions."""
    if _busy(launch, vectors) > 1:
        pipe = max(THREADS, key=lambda pipe: float(launch[pipe]) / THREADS[pipe])
        is_pipe = float(launch[pipe]) / THREADS[pipe] > float(launch["all"]) / 128
        return f"the {pipe} pipe is the bound" if is_pipe else "issuing instructions is the bound"
    if again > 1.1:
        return f"memory, which moves {again:.1f} times the least"
    return "memory" + ("; one block cannot load while it computes" if blocks <= FEW_BLOCKS else "")
