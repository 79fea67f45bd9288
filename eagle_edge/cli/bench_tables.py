"""What ``eagle-edge bench`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from ..rows import DEFAULT_ROWS

__all__ = ["comparison_table", "replay_table", "rows_table"]

_COLUMNS = {
    "set": "set",
    "context": "context",
    "temperature": "temp.",
    "contender": "contender",
    "tokens_per_second": "tokens/s",
    "ratio": "ratio",
    "ratio_spread": "10-90 %",
    "tau": "tau",
    "draft_n_per_round": "drafted a round",
    "share": "share of time",
    "first_ms": "first ms",
    "p95_ms": "P95 ms",
    "of_limit": "of limit",
    "tokens_per_joule": "tokens/J",
}


def comparison_table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line for each contender; columns that say nothing here are left out."""
    kept = [name for name in _COLUMNS if any(row[name] not in (None, 0, {}, []) for row in rows)]
    table = Table(title=f"tokens/s; ratios to {rows[0]['contender']}, medians over prompts")
    for name in kept:
        table.add_column(_COLUMNS[name], justify="left" if name in ("set", "contender", "share") else "right")
    for at, row in enumerate(rows):
        ends = at + 1 == len(rows) or _group(rows[at + 1]) != _group(row)
        table.add_row(*(_cell(row[name]) for name in kept), end_section=ends)
    return table


def replay_table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """Settings, best first."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table


def rows_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Milliseconds by rows, both choices of kernels side by side."""
    table = Table(title=f"ms for n rows, {rows[0]['type']}, medians")
    ms = {(row["kernels"], row["n"]): row["ms"] for row in rows}
    for column in ("n", "llama.cpp", "native", "ratio"):
        table.add_column(column, justify="right")
    for n in DEFAULT_ROWS:
        theirs, ours = ms[("llama.cpp", n)], ms.get(("native", n))
        ratio = "" if ours is None else f"{theirs / ours:.2f}"
        table.add_row(str(n), f"{theirs:.1f}", "-" if ours is None else f"{ours:.1f}", ratio)
    return table


def _group(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["set"], row["context"], row["temperature"]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name} {share:.0%}" for name, share in value.items())
    if isinstance(value, list):
        return " ".join(f"{number:.2f}" for number in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
