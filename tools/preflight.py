"""Say in one line what this machine lacks before a long build starts; standard library only."""

import pathlib
import shutil
import sys
import sysconfig

MISSING = {
    "a C++ compiler": (
        lambda: any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")),
        "apt install g++ | dnf install gcc-c++ | xcode-select --install",
    ),
    "the Python headers": (
        lambda: (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").is_file(),
        "apt install python3-dev | dnf install python3-devel",
    ),
    "the venv module": (
        lambda: __import__("importlib.util").util.find_spec("ensurepip") is not None,
        "apt install python3-venv",
    ),
}


def main() -> int:
    """0 when everything is there; 1 after one line a missing thing."""
    if sys.version_info < (3, 10):
        print(f"eagle-edge needs Python 3.10 or newer, this is {sys.version.split()[0]}; try: make PYTHON=python3.12")
        return 1
    missing = [
        f"{name} is missing; install it: {remedy}" for name, (present, remedy) in MISSING.items() if not present()
    ]
    for line in missing:
        print(line, file=sys.stderr)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
