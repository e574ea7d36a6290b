"""Charts of benchmark results: one of all rows, and a summary of one array size.

``python benchmarks/chart.py benchmarks/results/RESULT.json`` writes the summary, ``RESULT-summary.png``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLUMNS = 4

#: The array size of the summary; each workload shows its row of the nearest size.
SUMMARY = 2**22


def draw(rows: list[dict[str, Any]], names: list[str], title: str, path: Path) -> None:
    """Write a chart of all rows: a panel per workload, a bar per library; a bar below 1 is quicker than op-tree."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    others = [name for name in names if name != "optree"]
    colours = dict(zip(others, pyplot.get_cmap("tab10").colors, strict=False))
    lines, width = math.ceil(len(workloads) / COLUMNS), 0.85 / len(others)
    figure, panels = pyplot.subplots(
        lines, COLUMNS, figsize=(4.4 * COLUMNS, 3.0 * lines + 1), squeeze=False, sharey=True, layout="constrained"
    )
    for panel, workload in zip(panels.flat, workloads, strict=False):
        own = [row for row in rows if row["workload"] == workload]
        for number, name in enumerate(others):
            ratios = [row["seconds"].get(name, math.nan) / row["seconds"]["optree"] for row in own]
            lefts = [i + number * width for i in range(len(own))]
            panel.bar(lefts, [r - 1 for r in ratios], width, bottom=1, label=name, color=colours[name])
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.grid(axis="y", alpha=0.3)
        panel.set_title(workload, fontsize=10)
        labels = [f"2^{math.log2(row['elements']):.3g}\n{row['dtype']}" for row in own]
        panel.set_xticks([i + 0.4 for i in range(len(own))], labels, fontsize=7)
    for panel in panels.flat[len(workloads) :]:
        panel.axis("off")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(others))
    figure.suptitle(title)
    figure.supylabel("time over op-tree's: above 1, op-tree is quicker")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def summarise(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Write the summary in float32: a line per workload, with a mark per library."""
    own = [row for row in rows if row["dtype"] == "float32"]
    workloads = reversed(dict.fromkeys(row["workload"] for row in own))  # the lowest line is the first
    lines = [
        min((row for row in own if row["workload"] == name), key=lambda row: abs(math.log2(row["elements"] / SUMMARY)))
        for name in workloads
    ]
    names = [name for name in dict.fromkeys(name for row in lines for name in row["seconds"]) if name != "optree"]
    figure, axes = pyplot.subplots(figsize=(8.4, 4.2), layout="constrained")
    for name, marker in zip(sorted(names), "os^Dv*", strict=False):
        marks = [(row["seconds"].get(name, math.nan) / row["seconds"]["optree"], y) for y, row in enumerate(lines)]
        axes.scatter(*zip(*marks, strict=True), s=36, marker=marker, label=name, zorder=2)
    axes.axvline(1, color="black", linewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(lines)), [f"{row['workload']}, 2^{math.log2(row['elements']):.3g}" for row in lines])
    axes.grid(alpha=0.3)
    axes.set_xlabel("time over op-tree's: right of the line, op-tree is quicker")
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside right center")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    result = json.loads(source.read_text())
    machine = result["machine"]
    title = f"float32, {machine['processors']} processors ({machine['processor']}), {result['date']}"
    summarise(result["rows"], title, source.with_name(f"{source.stem}-summary.png"))
