"""A picture of measured rows: a panel for each workload, a bar for each library, on a logarithmic scale."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLUMNS = 4


def draw(rows: list[dict[str, Any]], names: list[str], title: str, path: Path) -> None:
    """Write the picture: bars stand on the time of ours, and hang down from it where a library was quicker."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    others = [name for name in names if name != "optree"]
    colours = dict(zip(others, pyplot.get_cmap("tab10").colors, strict=False))
    lines, width = math.ceil(len(workloads) / COLUMNS), 0.85 / len(others)
    figure, panels = pyplot.subplots(
        lines, COLUMNS, figsize=(4.4 * COLUMNS, 3.0 * lines + 1), squeeze=False, sharey=True, layout="constrained"
    )
    for panel, workload in zip(panels.flat, workloads, strict=False):
        own = [row for row in rows if row["workload"] == workload]
        for place, name in enumerate(others):
            ratios = [row["seconds"].get(name, math.nan) / row["seconds"]["optree"] for row in own]
            places = [i + place * width for i in range(len(own))]
            panel.bar(places, [r - 1 for r in ratios], width, bottom=1, label=name, color=colours[name])
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
