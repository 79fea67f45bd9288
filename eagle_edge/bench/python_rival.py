"""llama-cpp-python's chat interface, in a process of its own: our kernels would otherwise serve it too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from ..config import SamplingParams
from ..errors import NativeError
from .runs import Prompt, Run, Watch

__all__ = ["PythonRival"]


class PythonRival:
    """Plain decoding by llama-cpp-python of the same file, on as many threads.

    Args:
        path: the target's GGUF file.
        n_ctx: positions of text.
        n_threads: CPU threads.
        n_gpu_layers: layers on the GPU; -1 all.

    Attributes:
        note: what has to be known of its figures; empty if nothing. llama.cpp's AMX products crash as GCC 12 compiles
            them; it is then asked to do without.
    """

    name = "llama-cpp-python"

    def __init__(self, path: str | os.PathLike[str], n_ctx: int, n_threads: int, n_gpu_layers: int = 0) -> None:
        settings = {
            "model_path": os.fspath(path),
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_threads_batch": n_threads,
            "n_gpu_layers": n_gpu_layers,
        }
        self.note = ""
        try:
            self._start(settings)
        except NativeError as error:
            self.note = f"{error}; it is measured without its re-laid weights (use_extra_bufts)"
            self._start({**settings, "use_extra_bufts": False})

    def _start(self, settings: dict[str, Any]) -> None:
        """Start the process, which shows with one token that it can generate."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "eagle_edge.bench.python_rival", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reply()

    def answer(self, prompt: Prompt, params: SamplingParams) -> Run:
        """Generate from empty caches."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"text": prompt.text, **_settings(params)}) + "\n")
        self._process.stdin.flush()
        return Run(**self._reply())

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()

    def _reply(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NativeError(f"the process of {self.name} ended with {self._process.wait()}")
        return json.loads(line)


def _settings(params: SamplingParams) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    return {name: getattr(params, name) for name in names}


@dataclass(slots=True)
class _Server:
    """The other side of the pipe."""

    llama: Any

    def answer(self, text: str, **settings: Any) -> Run:
        llama = self.llama
        llama.reset()
        watch, n_prompt = Watch(), 0
        for chunk in llama.create_chat_completion([{"role": "user", "content": text}], stream=True, **settings):
            piece = chunk["choices"][0]["delta"].get("content")
            if piece is not None:
                n_prompt = n_prompt or llama.n_tokens
                watch.deliver(llama.n_tokens - n_prompt + 1 - watch.run.n_tokens, piece)
        run = watch.run
        if llama.n_tokens - n_prompt + 1 > run.n_tokens:  # an end token shows as no text
            watch.deliver(llama.n_tokens - n_prompt + 1 - run.n_tokens)
        run.rounds = run.n_tokens
        return run


def _serve(settings: dict[str, Any], use_extra_bufts: bool = True) -> None:
    import llama_cpp

    defaults = llama_cpp.llama_model_default_params

    def model_params() -> Any:
        params = defaults()
        params.use_extra_bufts = use_extra_bufts
        return params

    llama_cpp.llama_cpp.llama_model_default_params = model_params
    out = os.fdopen(os.dup(1), "w")  # llama.cpp prints to standard output when it likes
    os.dup2(2, 1)
    server = _Server(llama_cpp.Llama(**settings, verbose=False))
    server.answer("Hello", max_tokens=1)
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(server.answer(**request).as_dict()), file=out, flush=True)


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    _serve(wanted, wanted.pop("use_extra_bufts", True))
