"""Our engine beside llama-server with the same head, at every length of its chain: the best of them is the one to beat.

    python benchmarks/llama_server.py path/to/llama-server QUESTIONS [options of eagle-edge bench]

starts one server for each --spec-draft-n-max (0 decodes plainly), idle until it is asked, and lets them take turns with
our plain and drafted decoding in one run. Build llama-server from the llama.cpp inside llama-cpp-python's source
distribution, so that both sides have the same version:

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36 && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF
    cmake --build build --target llama-server
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from eagle_edge.models import default_head, default_target
from eagle_edge.threads import physical_cores

_START_S = 300  # a server on a busy machine may take long to load


def main() -> None:
    """Parse, start the servers, run the comparison, stop the servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", type=Path, help="the llama-server executable")
    parser.add_argument("questions", type=Path, help="a folder of question sets")
    parser.add_argument("--target", type=Path, default=default_target())
    parser.add_argument("--head", type=Path, default=default_head())
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--n-max", default="0,1,2,3,4,5,6", help="lengths of the chain, comma-separated")
    parser.add_argument("--n-ctx", type=int, default=4096)
    ours, bench_options = parser.parse_known_args()
    with contextlib.ExitStack() as servers:
        against = []
        for n_max in map(int, ours.n_max.split(",")):
            command = [ours.server, "-m", ours.target, "-c", ours.n_ctx, "-np", 1, "-t", ours.threads]
            if n_max:
                command += ["-md", ours.head, "--spec-type", "draft-eagle3", "--spec-draft-n-max", n_max]
            address = servers.enter_context(_running(command))
            name = f"llama-server n_max {n_max}" if n_max else "llama-server plain"
            against += ["--against", f"{name}={address}"]
        pair = ["--target", ours.target, "--head", ours.head, "--threads", ours.threads, "--n-ctx", ours.n_ctx]
        command = [sys.executable, "-m", "eagle_edge", "bench", ours.questions, *pair, *against, *bench_options]
        sys.exit(subprocess.run(list(map(str, command)), check=False).returncode)


@contextlib.contextmanager
def _running(command: list[object]) -> Iterator[str]:
    """The address of a server that answers while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [*map(str, command), "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait(f"{address}/health", process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"llama-server ended with {process.returncode}; run {' '.join(map(str, process.args))} to see why")  # type: ignore[arg-type]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    sys.exit(f"llama-server did not answer within {_START_S} s")


if __name__ == "__main__":
    main()
