"""llama.cpp's own converter of Hugging Face models, fetched once and run in a process of its own.

It ships in the source distribution of the pinned llama-cpp-python, so it writes what the installed engine reads.
Nothing of it is part of this project: the archive comes through pip and its configured index, is checked against a
known hash, and the few files needed are kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_edge.errors import DependencyError, FileFormatError

from .write import Progress

__all__ = ["converter_folder", "run_process", "run_reference"]

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_VARIABLE = "EAGLE_EDGE_LLAMA_CPP_SDIST"  # an archive that is already here, for machines without a network
_ROOT = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
_WANTED = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/", "models/templates/", "LICENSE")


def converter_folder() -> Path:
    """The folder with convert_hf_to_gguf.py, fetched when it is not in the cache yet.

    Raises:
        DependencyError: pip cannot fetch the archive, or it is not the one that is known.
    """
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("eagle-edge")) / f"llama.cpp-{VERSION}"
    if (folder / "convert_hf_to_gguf.py").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive = Path(os.environ.get(SDIST_VARIABLE) or _download(Path(scratch)))
        _check_hash(archive)
        unpacked = Path(scratch) / "unpacked"
        _unpack(archive, unpacked)
        if not folder.exists():  # another process may have been faster
            unpacked.replace(folder)
    return folder


def _download(folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n")
    arguments = ["--no-deps", "--no-binary", "llama-cpp-python", "-r", str(requirement), "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or len(archives) != 1:
        reason = (done.stderr.strip().splitlines() or ["no archive came"])[-1]
        raise DependencyError(
            f"pip cannot fetch the source of llama-cpp-python {VERSION} ({reason}); give a copy in {SDIST_VARIABLE}"
        )
    return archives[0]


def _check_hash(archive: Path) -> None:
    try:
        with archive.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise DependencyError(f"{archive}: cannot be read: {error.strerror or error}") from None
    if digest.hexdigest() != SHA256:
        raise DependencyError(f"{archive}: is not the source of llama-cpp-python {VERSION} (another sha256)")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            inner = member.name.removeprefix(_ROOT)
            parts = Path(inner).parts
            if inner == member.name or not member.isreg() or not inner.startswith(_WANTED) or ".." in parts:
                continue
            source = tar.extractfile(member)
            assert source is not None
            path = folder / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            with source, path.open("wb") as file:
                shutil.copyfileobj(source, file)


def run_reference(
    checkpoint: Path,
    output: Path,
    outtype: str,
    *,
    vocab_only: bool = False,
    pre_tokenizer: str | None = None,
    metadata: Mapping[str, str] | None = None,
    expected_bytes: int = 0,
    progress: Progress | None = None,
) -> list[str]:
    """Convert a Hugging Face folder to the GGUF file ``output``; the lines of warning the converter gave.

    Raises:
        DependencyError: the converter cannot be fetched.
        FileFormatError: it refuses the checkpoint; the message says why in one line.
    """
    job = {
        "converter": str(converter_folder()),
        "checkpoint": str(checkpoint.resolve()),
        "output": str(output.resolve()),
        "outtype": outtype,
        "vocab_only": vocab_only,
        "pre_tokenizer": pre_tokenizer,
        "metadata": dict(metadata or {}),
    }

    def told() -> None:
        if progress is not None and output.exists():
            progress(min(output.stat().st_size, expected_bytes), expected_bytes)

    answer = run_process("reference_process", job, told)
    if "error" in answer:
        raise FileFormatError(f"{checkpoint}: {answer['error']}")
    return list(answer.get("warnings", ()))


def run_process(module: str, job: Mapping[str, Any], told: Any = None) -> dict[str, Any]:
    """What a module of this package answers to ``job``, run in a fresh interpreter: JSON in, JSON in a file out.

    A crash of native code, or memory that a library holds on to, ends with that process. ``told`` is called a few
    times a second while it runs. Without an answer, the last line it wrote stands as the error.
    """
    with tempfile.TemporaryDirectory() as scratch:
        answer, log = Path(scratch) / "answer.json", Path(scratch) / "log"
        # Idle threads of torch and of the engine must not spin while the other works: minutes on a busy machine.
        spin = {"GOMP_SPINCOUNT": "1000", **os.environ}
        environment = {**spin, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", f"eagle_edge_convert.{module}", json.dumps({**job, "answer": str(answer)})]
        with log.open("wb") as stream:
            child = subprocess.Popen(
                command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=environment, cwd=scratch
            )
            try:
                while child.poll() is None:
                    time.sleep(0.1)
                    if told is not None:
                        told()
            except BaseException:
                child.terminate()
                child.wait()
                raise
        if answer.is_file():
            value: dict[str, Any] = json.loads(answer.read_text())
            return value
        lines = log.read_text(errors="replace").strip().splitlines()
        end = f"exit code {child.returncode}" if child.returncode >= 0 else f"signal {-child.returncode}"
        return {"error": f"the conversion process ended with {end}: {' '.join((lines or ['no message'])[-1].split())}"}
