"""What several test files need: tiny random models, made once a run, and the packaged pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import make_head, make_target

from eagle_edge.models import default_head, default_target


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("tiny") / "target.gguf")


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_head(tmp_path_factory.mktemp("tiny") / "eagle3-head.gguf")


@pytest.fixture(scope="session")
def packaged_target() -> Path:
    return default_target()


@pytest.fixture(scope="session")
def packaged_head() -> Path:
    return default_head()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measurements remembered by tests, and by the processes they start, stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def native_kernels() -> Iterator[None]:
    """Native kernels for every model a test loads; skipped where there are none."""
    from eagle_edge.kernels import choose_kernels, kernel_note

    if not choose_kernels("auto"):
        pytest.skip(f"no native kernels: {kernel_note()}")
    yield
    choose_kernels("auto")
