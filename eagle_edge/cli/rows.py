"""``eagle-edge bench --rows``: what n rows cost with either choice of CPU kernels, a table for each model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from ..errors import FileFormatError
from ..rows import DEFAULT_ROWS, Limits, measure_limits, measure_rows
from .session import stderr

__all__ = ["bench_rows"]


def bench_rows(models: Path, n_threads: int | None, with_limits: bool, as_json: bool) -> None:
    """Measure a GGUF file, or every one in a folder, and print a table of each as it is done."""
    files = sorted(models.glob("*.gguf")) if models.is_dir() else [models]
    if not files:
        raise FileFormatError(f"{models}: no *.gguf file in it")
    everything = []
    for file in files:
        limits = measure_limits(file, n_threads) if with_limits else None
        with stderr.status(f"timing {file.name}") as status:

            def tell(n: int, name: str = file.name, status: Status = status) -> None:
                status.update(f"timing {name}, {n} rows of {DEFAULT_ROWS[-1]}")

            rows = measure_rows(file, n_threads=n_threads, progress=tell)
        if limits is not None:
            limits = limits.or_better(measure_limits(file, n_threads))
        for row in rows:
            row["target"] = file.name
            if limits is not None:
                row["limit_ms"] = round(limits.ms(file, row["n"]), 6)
        everything += rows
        if not as_json:
            Console().print(_table(file.name, rows, limits))
    if as_json:
        print(json.dumps(everything))


def _table(name: str, rows: list[dict[str, Any]], limits: Limits | None) -> Table:
    title = f"{name} ({rows[0]['type']}): ms for n rows, medians"
    if limits is not None:
        title += f"; {limits.bytes_per_s / 1e9:.0f} GB/s, {limits.products_per_s / 1e9:.0f} G products/s"
    table = Table(title=title)
    columns = ("n", "llama.cpp", "native", "ratio", "T(n)/T(1)", *(("limit", "of limit") if limits else ()))
    for column in columns:
        table.add_column(column, justify="right")
    by_kernels: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_kernels.setdefault(row["kernels"], {})[row["n"]] = row
    theirs = by_kernels["llama.cpp"]
    ours = by_kernels.get("native", {})
    for n, their in theirs.items():
        best = ours.get(n, their)["ms"]
        cells = [str(n), f"{their['ms']:.1f}"]
        cells += [f"{best:.1f}", f"{their['ms'] / best:.2f}"] if n in ours else ["-", "-"]
        cells.append(f"{best / (ours or theirs)[min(theirs)]['ms']:.2f}")
        if limits is not None:
            limit = their["limit_ms"]
            cells += [f"{limit:.1f}", f"{limit / best:.0%}"]
        table.add_row(*cells)
    return table
