"""The comparison as bars: tokens a second by set and contender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DependencyError, FileFormatError

__all__ = ["check_drawing", "draw"]


def check_drawing(path: Path) -> None:
    """Say at once that nothing can be drawn there, not after the measurement.

    Raises:
        DependencyError: matplotlib is not installed.
        FileFormatError: no such folder, or no kind of picture has this ending.
    """
    try:
        import matplotlib
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise DependencyError("drawing needs matplotlib: pip install 'eagle-edge[train]', or leave --png out") from None
    if not path.parent.is_dir():
        raise FileFormatError(f"{path}: there is no folder {path.parent} to draw into")
    if path.suffix[1:].lower() not in FigureCanvasBase.filetypes:
        raise FileFormatError(f"{path}: pictures end in .png, .svg or .pdf")
    matplotlib.use("Agg")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel for every context and temperature, one group of bars for every set."""
    from matplotlib import pyplot

    panels = sorted({(row["context"], row["temperature"]) for row in rows})
    sets = list(dict.fromkeys(row["set"] for row in rows))
    names = list(dict.fromkeys(row["contender"] for row in rows))
    size = (max(7.0, 0.22 * len(sets) * len(names)), 3.4 * len(panels))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, (context, temperature) in zip(axes[:, 0], panels, strict=True):
        for at, name in enumerate(names):
            speeds = {
                row["set"]: row["tokens_per_second"] or 0
                for row in rows
                if (row["context"], row["temperature"], row["contender"]) == (context, temperature, name)
            }
            places = [group + (at - (len(names) - 1) / 2) * 0.8 / len(names) for group in range(len(sets))]
            axis.bar(places, [speeds.get(s, 0) for s in sets], 0.8 / len(names), label=name)
        padded = f", prompts of {context} tokens" if context else ""
        axis.set_title(f"temperature {temperature:g}{padded}")
        axis.set_xticks(range(len(sets)), sets)
        axis.set_ylabel("tokens/s")
    axes[0, 0].legend(fontsize="small", ncols=4)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
