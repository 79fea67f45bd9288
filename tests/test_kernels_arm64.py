"""The arm64 kernel paths, cross-compiled and emulated, against the paths of this machine."""

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


@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=f"needs {CROSS} and {EMULATOR}")
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_arm64_paths_give_the_bits_of_this_machine(tmp_path: Path) -> None:
    """Both arm64 paths print the hashes that AVX2 prints, for every weight type and for attention."""
    here = dump(str(build("g++", "EE_KERNELS_X86", HERE, [], tmp_path)), "avx2")
    arm64 = build(CROSS, "EE_KERNELS_ARM64", ARM64, ["-static"], tmp_path)
    assert len(here.splitlines()) == 17
    for name in ARM64:
        assert here == dump(EMULATOR, "-cpu", "max", str(arm64), name)
