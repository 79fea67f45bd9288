"""What verifying drafts costs on this machine with a converted model, and whether an output matrix of its own helps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from eagle_edge.errors import FileFormatError

from .reference import run_process
from .untie import is_tied, untie_output

__all__ = ["UNTIED_TYPE", "DraftCost", "measure_draft_cost"]

UNTIED_TYPE = "q4_0"  # the cheapest to multiply by
ROWS = (1, 4, 8)
_WORTH = 0.05


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Milliseconds of an evaluation, measured in turns.

    Attributes:
        kernels: the instruction set of the native kernels; "" is llama.cpp's kernels.
        ms: by rows of one evaluation.
        untied_ms: the same with an output matrix of its own in ``UNTIED_TYPE``; None where the model has one.
    """

    kernels: str
    ms: dict[int, float]
    untied_ms: dict[int, float] | None = None

    @property
    def gain(self) -> float:
        """The part of the time of 8 rows that untying saves; below 0 it costs."""
        return 0.0 if self.untied_ms is None else 1 - self.untied_ms[ROWS[-1]] / self.ms[ROWS[-1]]

    def __str__(self) -> str:
        kernels = f"native kernels, {self.kernels}" if self.kernels else "llama.cpp's kernels"
        text = f"evaluating {_list(ROWS)} rows takes {_times(self.ms)} ms here ({kernels})"
        if self.untied_ms is None:
            return text
        advice = f"worth it: --untie-output {UNTIED_TYPE}" if self.gain >= _WORTH else "not worth it"
        change = f"{abs(self.gain):.0%} {'less' if self.gain >= 0 else 'more'} for 8"
        return f"{text}; with an output matrix of its own in {UNTIED_TYPE} {_times(self.untied_ms)}, {change}: {advice}"


def measure_draft_cost(path: Path) -> DraftCost:
    """Measure the model at ``path``; a tied one also untied, as a file that goes when it is done.

    Raises:
        FileFormatError: the model does not run.
    """
    with tempfile.TemporaryDirectory(dir=path.resolve().parent) as scratch:
        files = [path.resolve()]
        if is_tied(path):
            files.append(Path(scratch) / "untied.gguf")
            untie_output(path, files[1], UNTIED_TYPE)
        answer = run_process("draft_cost_process", {"files": [str(file) for file in files], "rows": ROWS})
    if "error" in answer:
        raise FileFormatError(f"{path}: cannot be measured: {answer['error']}")
    times = [dict(zip(ROWS, ms, strict=True)) for ms in answer["ms"]]
    return DraftCost(answer["kernels"], times[0], times[1] if len(times) > 1 else None)


def _list(values: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, values[:-1]))} and {values[-1]}"


def _times(ms: dict[int, float]) -> str:
    return ", ".join(f"{value:.3g}" for value in ms.values())
