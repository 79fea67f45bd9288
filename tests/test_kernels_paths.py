"""Every kernel path prints the same hashes: those of this machine, and the arm64 ones, cross-compiled and emulated."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "native" / "kernels"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-w"]
# Name of the path, and the flags kernels.cmake gives it.
ARM64 = {"neon_dot": ["-march=armv8.2-a+dotprod+fp16"], "neon_i8mm": ["-march=armv8.2-a+dotprod+fp16+i8mm"]}
X86 = ["-mavx2", "-mfma", "-mf16c"]
VNNI = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
HERE = {"avx2": X86, "avxvnni_evex": X86 + VNNI, "avx512vnni": X86 + VNNI}

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def build(compiler: str, define: str, paths: dict[str, list[str]], extra: list[str], folder: Path) -> Path:
    """The program that dumps what each path computes."""
    include = [f"-I{KERNELS}", f"-I{KERNELS.parent}", "-isystem", f"{sysconfig.get_paths()['purelib']}/include"]
    objects = []
    for name, flags in paths.items():
        objects.append(str(folder / f"{name}.o"))
        source = str(KERNELS / f"path_{name}.cpp")
        subprocess.run([compiler, *FLAGS, *flags, *include, "-c", source, "-o", objects[-1]], check=True)
    sources = [str(ROOT / "tests" / "kernels_dump.cpp"), str(KERNELS / "layout.cpp"), str(KERNELS / "paths.cpp")]
    program = folder / f"dump-{define}"
    subprocess.run(
        [compiler, *FLAGS, *extra, f"-D{define}", *include, *sources, *objects, "-o", str(program)], check=True
    )
    return program


def dump(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for the paths of x86-64."""
    return build("g++", "EE_KERNELS_X86", HERE, [], tmp_path_factory.mktemp("dump"))


@needs_compiler
def test_paths_of_this_machine_give_the_same_bits(here: Path) -> None:
    """All x86-64 paths that run here print the same hashes, and sharing the cells of attention changes none."""
    avx2 = dump(str(here), "avx2")
    attention = [line for line in avx2.splitlines() if line.startswith("attention")]
    assert len(avx2.splitlines()) == 24
    assert attention[::2] == attention[1::2]
    for name in ("avxvnni", "avx512vnni"):
        run = subprocess.run([here, name], capture_output=True, text=True)
        assert run.returncode == 1 or run.stdout == avx2, name  # 1: no such path here


@needs_compiler
@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=f"needs {CROSS} and {EMULATOR}")
def test_arm64_paths_give_the_bits_of_this_machine(here: Path, tmp_path: Path) -> None:
    """Both arm64 paths print the hashes that AVX2 prints, for every weight type and for attention."""
    arm64 = build(CROSS, "EE_KERNELS_ARM64", ARM64, ["-static"], tmp_path)
    for name in ARM64:
        assert dump(str(here), "avx2") == dump(EMULATOR, "-cpu", "max", str(arm64), name)
