"""Good files, broken in many small ways, and a worker that opens them: run as a script, in a process of its own.

The worker prints a line before and after each case, so that a crash names the case it happened in.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HEADER = 6000  # most mutations hit the part of a file that describes the rest


def mutate(data: bytes, seed: int) -> bytes:
    """The bytes with one to four faults: flips, cuts, lengths, moved and repeated pieces."""
    rng, out = random.Random(seed), bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(min(len(out), HEADER) if rng.random() < 0.8 else len(out))
        kind = rng.randrange(7)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at : at + 8] = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)).to_bytes(8, "little")
        elif kind == 3:
            del out[at : at + rng.randrange(1, 64)]
        elif kind == 4:
            out[at:at] = out[at : at + rng.randrange(1, 64)]
        elif kind == 5:
            out[at : at + 4] = rng.choice((0, 5, 255, 65535, 2**31 - 1, 2**32 - 1)).to_bytes(4, "little")
        else:
            del out[at if rng.random() < 0.3 else -rng.randrange(1, 4096) :]
        if not out:
            break
    return bytes(out)


def open_head(path: Path, good: Path) -> None:
    """Load a head beside a good target and draft with it."""
    import numpy as np

    from eagle_edge.config import DraftParams
    from eagle_edge.draft import Draft

    params = DraftParams(8, 2, 2)
    with Draft(path, good / "target.gguf", n_ctx=32, n_threads=1, params=params) as draft:
        width = len(draft.config.taps) * draft.config.n_embd_target
        draft.extend(np.arange(4, dtype=np.int32), np.ones((4, width), np.float32))
        draft.propose(3, params, 8)


def open_target(path: Path, good: Path) -> None:
    """Load a target with a good head and generate a few tokens."""
    from eagle_edge.config import DraftParams, SamplingParams, TargetParams
    from eagle_edge.engine import Engine

    params = DraftParams(8, 2, 2)
    engine = Engine(path, good / "head.gguf", TargetParams(n_ctx=300, n_threads=1), draft_params=params)
    engine.complete([5, 6, 7], SamplingParams(max_tokens=4))


def convert(path: Path, good: Path) -> None:
    """Convert the checkpoint that ``path``, a file of it, lies in."""
    from eagle_edge_convert import convert_head

    convert_head(path.parent, good / "target.gguf", path.parent.parent / "out.gguf", "q8_0", check=False)


def check(path: Path, good: Path) -> None:
    """Look at the model checkpoint that ``path``, a file of it, lies in."""
    from eagle_edge_convert.model_checks import check_model

    check_model(path.parent)


OPENERS: dict[str, Callable[[Path, Path], None]] = {
    "head.gguf": open_head,
    "target.gguf": open_target,
    "safetensors": convert,
    "bin": convert,
    "config": convert,
    "model": check,
}
# Where the file to break lies among the good ones.
FILES = {
    "head.gguf": "head.gguf",
    "target.gguf": "target.gguf",
    "safetensors": "shards/model-00001-of-00002.safetensors",
    "bin": "bin/pytorch_model.bin",
    "config": "shards/config.json",
    "model": "model/model.safetensors",
}


def run(kind: str, seed: int, good: Path, scratch: Path) -> str:
    """The word right, or the one line that refuses the broken file.

    Raises:
        AssertionError: the message has several lines, or a file is left behind.
    """
    from eagle_edge.errors import EagleEdgeError

    inner = Path(FILES[kind])
    shutil.rmtree(scratch, ignore_errors=True)
    if inner.parent.name:
        shutil.copytree(good / inner.parent, scratch / inner.parent)
    else:
        scratch.mkdir()
    path = scratch / inner
    path.write_bytes(mutate((good / inner).read_bytes(), seed))
    before = set(scratch.rglob("*"))
    try:
        OPENERS[kind](path, good)
        return "right"
    except (EagleEdgeError, ValueError, OSError) as error:
        message = str(error)
    assert message, "an empty message"
    assert "\n" not in message, repr(message)
    assert set(scratch.rglob("*")) == before, "a file is left behind"
    return message


def main() -> None:
    """Run the cases of a JSON list of (kind, seed) on stdin; arguments: the good files, a scratch folder."""
    good, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    for kind, seed in json.load(sys.stdin):
        sys.stdout.write(f"begin {kind} {seed}\n")
        sys.stdout.flush()
        sys.stdout.write(f"end {run(kind, seed, good, scratch)}\n")


if __name__ == "__main__":
    main()
