"""Pictures and table of the ablations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["COMPARISONS", "write_report"]

#: File name: title, and the heads compared.
COMPARISONS = {
    "steps": ("With and without training-time test", ("eagle3", "one-step")),
    "generations": ("Three generations of heads", ("eagle1", "eagle3", "eagle3.1")),
    "taps": ("One tap and three", ("one-tap", "eagle3")),
    "data": ("Amount of text", ("data-1-8", "data-1-4", "data-1-2", "eagle3")),
    "features": ("States of the quantised target and of a dequantised copy", ("data-1-4", "dequantised")),
}


def write_report(folder: Path, variants: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ablations.md and a picture for each comparison whose heads are all there."""
    for file, (title, names) in COMPARISONS.items():
        if all(name in results for name in names):
            _draw(folder / f"{file}.png", title, [(variants[name].label, results[name]) for name in names])
    lines = [
        "| head | answer tokens x epochs | CPU minutes | right with 0 1 2 3 4 5 fed back | tau, chain | tau, tree |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        steps = " ".join(f"{100 * rate:.0f}" for rate in result["first"])
        lines.append(
            f"| {variants[name].label} | {result['answer_tokens'] / 1000:.0f}k x {variants[name].epochs} "
            f"| {result['cpu_minutes']:.1f} | {steps} % | {result['tau_chain']:.2f} | {result['tau_tree']:.2f} |"
        )
    (folder / "ablations.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _draw(path: Path, title: str, entries: list[tuple[str, Mapping[str, Any]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(3, 2))
    for label, result in entries:
        left.plot(range(len(result["first"])), result["first"], marker="o", label=label)
    left.set(xlabel="features fed back", ylabel="first candidate is right", ylim=(0, None))
    left.legend(fontsize=8)
    for index, (_, result) in enumerate(entries):
        places = [side + 0.8 * (index / len(entries) - 0.5) for side in (0, 1)]
        bars = right.bar(places, [result["tau_chain"], result["tau_tree"]], width=0.75 / len(entries), align="edge")
        right.bar_label(bars, fmt="%.2f", fontsize=8)
    right.set(xticks=(0, 1), xticklabels=("chain of 6", "tree 60/7/10"), ylabel="tokens per target evaluation")
    right.set_ylim(1, None)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
