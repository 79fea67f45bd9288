"""What verifying drafts costs on this machine with a converted model, and whether an output matrix of its own helps."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError

from .proof import free_bytes
from .reference import run_process
from .untie import is_tied, untie_output

__all__ = ["ROWS", "UNTIED_TYPE", "DraftCost", "measure_draft_cost"]

UNTIED_TYPE = "q4_0"  # the cheapest to multiply by
ROWS = (1, 4, 8)
_WORTH = 0.05  # of the time, below which the larger file is not worth it


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What evaluations take with one set of kernels.

    Attributes:
        kernels: the instruction set of the native kernels; "" is llama.cpp's kernels.
        ms: the fastest evaluation of so many rows, in milliseconds.
        untied_ms: the same with an output matrix of its own in ``UNTIED_TYPE``; None where the model has one.
        saved: the part of the time of ``ROWS[-1]`` rows that untying saves, below 0 costs: the quartiles and the median
            of evaluations that took turns.
    """

    kernels: str
    ms: dict[int, float]
    untied_ms: dict[int, float] | None = None
    saved: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def worth_untying(self) -> bool:
        """Whether even the lower quartile of what is saved is worth a larger file."""
        return self.untied_ms is not None and self.saved[0] >= _WORTH

    def __str__(self) -> str:
        kernels = f"native kernels ({self.kernels})" if self.kernels else "llama.cpp's kernels"
        text = f"{kernels}: {', '.join(map(str, ROWS))} rows take {_times(self.ms)} ms here"
        if self.untied_ms is None:
            return f"{text}; the model has an output matrix of its own"
        low, middle, high = self.saved
        verdict = f"worth it: --untie-output {UNTIED_TYPE}" if self.worth_untying else "no clear gain, leave it tied"
        return (
            f"{text}, {_times(self.untied_ms)} with an output matrix of its own in {UNTIED_TYPE}: "
            f"{ROWS[-1]} rows {middle:+.0%} saved (half of the turns between {low:+.0%} and {high:+.0%}), {verdict}"
        )


def measure_draft_cost(path: Path) -> tuple[DraftCost, ...] | str:
    """The cost with native kernels, where they run, and with llama.cpp's; or a sentence that says why there is none.

    A tied model is measured untied as well, as a file beside it that goes when it is done.
    """
    costs = []
    try:
        with tempfile.TemporaryDirectory(dir=path.resolve().parent) as scratch:
            files = [path.resolve()]
            if is_tied(path):
                files.append(Path(scratch) / "untied.gguf")
                untie_output(path, files[1], UNTIED_TYPE)
            if 2 * sum(file.stat().st_size for file in files) > free_bytes():  # kernels lay weights anew
                return "verification was not measured: the model does not fit twice into the memory that is free"
            for kernels in ("native", "llama.cpp"):
                job = {"files": [str(file) for file in files], "rows": ROWS, "kernels": kernels}
                answer = run_process("draft_cost_process", job)
                if "error" not in answer:
                    costs.append(_cost(answer["kernels"], np.array(answer["ms"])))
                elif kernels == "llama.cpp":  # native ones do not run everywhere
                    return f"verification was not measured: {answer['error']}"
    except (ValueError, OSError, FileFormatError) as error:
        return f"verification was not measured: {error}"
    return tuple(costs)


def _cost(kernels: str, ms: npt.NDArray[np.float64]) -> DraftCost:
    """``ms`` is [turns, files, rows]."""
    fastest = [dict(zip(ROWS, map(float, times), strict=True)) for times in ms.min(axis=0)]
    if len(fastest) == 1:
        return DraftCost(kernels, fastest[0])
    low, middle, high = np.quantile(1 - ms[:, 1, -1] / ms[:, 0, -1], (0.25, 0.5, 0.75))
    return DraftCost(kernels, fastest[0], fastest[1], (float(low), float(middle), float(high)))


def _times(ms: dict[int, float]) -> str:
    return ", ".join(f"{value:.3g}" for value in ms.values())
