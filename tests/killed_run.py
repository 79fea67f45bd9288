"""A tiny training run that kills itself: ``python killed_run.py PARAMS.json STAGE DONE``, or runs through without them.

PARAMS.json is what ``TrainParams.save`` writes. The process dies by SIGKILL as soon as ``STAGE`` is ``DONE`` (0..1).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from eagle_edge.train.params import TrainParams
from eagle_edge.train.run import train
from eagle_edge.train.watching import Report


class Deadly:
    """Progress that ends the process at its mark."""

    def __init__(self, stage: str = "", done: float = 0.0) -> None:
        self.mark, self.done = stage, done

    def stage(self, name: str, done: float, text: str) -> None:
        if name == self.mark and done >= self.done:
            os.kill(os.getpid(), signal.SIGKILL)

    def report(self, report: Report) -> None:
        self.stage("training", report.done, "")


if __name__ == "__main__":
    marks = sys.argv[2:]
    train(TrainParams.load(Path(sys.argv[1])), Deadly(marks[0], float(marks[1])) if marks else Deadly())
