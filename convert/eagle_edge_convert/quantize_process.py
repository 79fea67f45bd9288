"""Runs llama.cpp's quantiser; started by ``quantize.quantise`` and never imported by anything."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

from .imatrix import read_imatrix

MAX_BUFFER_BYTES = 1 << 29  # rows of one tensor that are in memory at a time


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Quantise as ``job`` says."""
    import llama_cpp

    log: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def keep(level: int, text: bytes, data: Any) -> None:
        log.append(text.decode(errors="replace"))

    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = job["file_type"], job["n_threads"]
    params.max_buf_size = MAX_BUFFER_BYTES
    kept = None
    if job["imatrix"]:
        try:
            kept = _matrix(read_imatrix(Path(job["imatrix"])), llama_cpp)
        except ValueError as error:
            return {"error": f"the importance matrix {job['imatrix']}: {error}"}
        params.imatrix = ctypes.cast(kept, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    code = llama_cpp.llama_model_quantize(job["source"].encode(), job["output"].encode(), ctypes.byref(params))
    text = "".join(log)
    if code:
        reasons = re.findall(r"failed to quantize: (.*)", text)
        return {"error": f"llama.cpp's quantiser: {' '.join((reasons or ['failed'])[-1].split())}"}
    found = re.findall(r"warning: (\S+)\s+- ncols.*?falling back to\s+(\S+)", text)
    return {"fallbacks": [f"{name} {kind}" for name, kind in found]}


def _matrix(values: dict[str, Any], llama_cpp: Any) -> Any:
    """A C array of name, numbers and count, ended by an entry without a name."""
    kind = llama_cpp.llama_model_imatrix_data
    out = (kind * (len(values) + 1))()
    for entry, (name, numbers) in zip(out, values.items(), strict=False):
        entry.name = name.encode()
        entry.data = numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = numbers.size
    out._numbers = list(values.values())  # they must outlive the call
    return out


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    _answer = run(_job)
    Path(_job["answer"]).write_text(json.dumps(_answer))
