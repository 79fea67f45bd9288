"""Which CPU kernels verify: ours, or llama.cpp's.

Native kernels have to be chosen before the process loads its first model. The choice holds for every model loaded
after it; it knows nothing of the models themselves.
"""

from __future__ import annotations

import os
import time
from typing import Literal

from .native import call, ffi, lib

__all__ = ["KERNEL_MODES", "KernelMode", "choose_kernels", "kernel_note", "kernel_path", "settle_weights"]

KernelMode = Literal["auto", "native", "llama.cpp"]
KERNEL_MODES: dict[str, int] = {
    "auto": lib.EE_KERNELS_AUTO,
    "native": lib.EE_KERNELS_NATIVE,
    "llama.cpp": lib.EE_KERNELS_LLAMA_CPP,
}


def choose_kernels(mode: KernelMode = "auto", path: str | None = None) -> str:
    """Choose the kernels of models loaded from now on, and return the path they run on ("" is llama.cpp's).

    Args:
        mode: "auto" takes native kernels where they can run, "native" insists on them.
        path: one instruction set, for comparison: avx512vnni, avxvnni, avx2, neon_i8mm or neon_dot; "" takes
            the best, None what the environment variable EAGLE_EDGE_KERNEL_PATH says.

    Raises:
        ValueError: no such mode.
        NativeError: "native" and they cannot run here.
    """
    if mode not in KERNEL_MODES:
        raise ValueError(f"kernels must be one of {', '.join(KERNEL_MODES)}, got {mode!r}")
    if path is None:
        path = os.environ.get("EAGLE_EDGE_KERNEL_PATH", "")
    call(lib.ee_kernels_install, KERNEL_MODES[mode], path.encode() or ffi.NULL)
    return kernel_path()


def kernel_path() -> str:
    """The instruction set native kernels run on, or "" when llama.cpp's run."""
    return str(ffi.string(lib.ee_kernels_path()).decode())


def kernel_note() -> str:
    """Why native kernels do not run, in a few words; "" when they do."""
    return str(ffi.string(lib.ee_kernels_note()).decode())


def settle_weights(seconds: float) -> bool:
    """Wait, at most so long, until large pages have been gathered for weights; whether they have been.

    Evaluations are faster then.
    """
    start = time.monotonic()
    while not (settled := bool(lib.ee_weights_are_settled())) and time.monotonic() - start < seconds:
        time.sleep(0.02)
    return settled
