"""Three pictures of a run, from its metrics.jsonl: the loss, the acceptance by depth, and what a chain would gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_metrics", "write_plots"]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a line that a kill cut short is left out."""
    out = []
    path = folder / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            out.append(json.loads(line))
        except ValueError:
            continue
    return out


def write_plots(folder: Path, figures: dict[str, Any] | None = None) -> list[Path]:
    """Write loss.png, acceptance.png and tau.png into ``folder``; none where there is nothing to show.

    Args:
        folder: of the run.
        figures: of the finished head, as figures.json has them; the end points of the measured curves.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = read_metrics(folder)
    losses = [(m["tokens"], m["loss"]) for m in metrics if "loss" in m]
    watched = [m for m in metrics if "first" in m]
    written = []

    def save(name: str, ylabel: str, curves: list[tuple[str, list[Any], list[Any]]]) -> None:
        figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        for label, x, y in curves:
            axes.plot(x, y, marker="o" if len(x) < 3 else None, label=label or None)
        axes.set_xlabel("answer tokens seen")
        axes.set_ylabel(ylabel)
        if any(label for label, _, _ in curves):
            axes.legend()
        axes.grid(alpha=0.3)
        figure.savefig(folder / name, dpi=120)
        pyplot.close(figure)
        written.append(folder / name)

    if losses:
        save("loss.png", "loss (nats)", [("", [x for x, _ in losses], [y for _, y in losses])])
    if watched:
        tokens = [m["tokens"] for m in watched]
        depths = range(len(watched[0]["first"]))
        save(
            "acceptance.png",
            "first candidate is the target's choice",
            [(f"depth {depth + 1}", tokens, [m["first"][depth] for m in watched]) for depth in depths],
        )
        curves = [
            ("chain, estimated from teacher-forced acceptance", tokens, [_chain_tau(m["first"]) for m in watched])
        ]
        save("tau.png", "tokens per target evaluation", curves + _measured(watched, figures or {}))
    return written


def _measured(watched: list[dict[str, Any]], figures: dict[str, Any]) -> list[tuple[str, list[Any], list[Any]]]:
    """The curves that were measured through the engine: while training, and at its end."""
    out = []
    for shape in ("tree", "chain"):
        points = [(m["tokens"], m[f"tau_{shape}"]) for m in watched if f"tau_{shape}" in m]
        if shape in figures.get("held_out", {}):
            points.append((watched[-1]["tokens"], figures["held_out"][shape]["tau"]))
        if points:
            out.append((f"{shape}, measured through the engine", [x for x, _ in points], [y for _, y in points]))
    return out


def _chain_tau(first: list[float]) -> float:
    total, path = 1.0, 1.0
    for rate in first:
        path *= rate
        total += path
    return total
