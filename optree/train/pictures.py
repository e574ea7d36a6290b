"""Roofline plots of profiles. They need Matplotlib (extra ``examples``)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from optree.pictures import Picture
from optree.run.profile import Profile

#: The colours of kernels and of calls.
COLORS = {"kernel": "#08519c", "call": "#d94801"}

#: The number of parts that are labelled, the most expensive ones.
NAMED = 6


def roofline(profile: Profile) -> Picture:
    """A roofline plot of a profile on the left, and the time of each part on the right.

    Each part is plotted by its flops per byte (x) and flops per second (y); its area is its time. The roof is the
    measured peak of the machine.

    Examples
    --------
    >>> import optree
    >>> from optree.train.profiles import profile
    >>> w = be.ones((64, 64), name="w")
    >>> roofline(profile(optree.function([], be.dot(w, w)))).svg().count("dot") > 0
    True

    Parameters
    ----------
    profile : Profile
        Of `optree.train.profile`.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    roof, bars = figure.subplots(1, 2)
    limits = profile.limits
    parts = sorted((p for p in profile.parts if p.seconds), key=lambda p: -p.seconds)
    drawn = [p for p in parts if p.bytes and p.flops]
    total = sum(p.seconds for p in parts) or 1.0
    density = np.array([p.flops / p.bytes for p in drawn] or [1.0])
    axis = np.geomspace(min(density.min(), 0.1) / 2, max(density.max(), 100) * 2, 200)
    roof.plot(axis, np.minimum(axis * limits.bytes, limits.flops) / 1e9, color="black", label="measured limits")
    for kind, color in COLORS.items():
        chosen = [p for p in drawn if p.kind == kind]
        roof.scatter(
            [p.flops / p.bytes for p in chosen],
            [p.flops / p.seconds / 1e9 for p in chosen],
            [20 + 400 * p.seconds / total for p in chosen],
            color=color,
            alpha=0.7,
            label=f"{kind}s",
        )
    roof.set(xscale="log", yscale="log", xlabel="flops a byte", ylabel="Gflop/s", title="Roofline")
    roof.legend()
    roof.grid(alpha=0.3)
    named = parts[:NAMED]
    rest = sum(p.seconds for p in parts[NAMED:])
    labels = [p.what.split(", built")[0] for p in named] + ["all others"] * (rest > 0)
    shares = [p.seconds / total for p in named] + [rest / total] * (rest > 0)
    colors = [COLORS[p.kind] for p in named] + ["#969696"] * (rest > 0)
    bars.barh(labels, shares, color=colors)
    bars.invert_yaxis()
    bars.set(xlabel="share of the time", title=f"{total * 1e6:.0f} microseconds")
    return Picture(figure)
