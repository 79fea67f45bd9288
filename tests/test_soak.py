from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tiny import HEAD, head_tensors, write_head

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine

pytestmark = [pytest.mark.native, pytest.mark.model]

PLAIN = DraftParams(total=1)
N_GENERATIONS = 200
SMOLLM2: dict[str, Any] = {
    "taps": (2, 15, 27),
    "n_embd": 576,
    "n_embd_target": 576,
    "n_head": 9,
    "n_head_kv": 3,
    "head_dim": 64,
}
WORDS = "the of a dog city number sings quickly because seven blue machine writes under every old river".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def engine(packaged_target: Path, packaged_head: Path) -> Iterator[Engine]:
    with Engine(packaged_target, packaged_head, TargetParams(n_ctx=512)) as engine:
        yield engine


def random_settings(rng: np.random.Generator) -> tuple[str, SamplingParams, DraftParams, int]:
    """A prompt, sampling, a tree, and the number of steps after which the caller loses interest."""
    depth, top_k = int(rng.integers(0, 8)), int(rng.integers(1, 11))
    total = int(rng.integers(2, min(60, 1 + top_k + depth * top_k**2) + 1))
    common: dict[str, Any] = {"max_tokens": int(rng.integers(1, 24)), "seed": int(rng.integers(2**32))}
    if rng.random() < 0.5:
        common |= {"temperature": float(rng.uniform(0.2, 1.5)), "top_p": float(rng.uniform(0.5, 1))}
    if rng.random() < 0.3:
        common |= {"repeat_penalty": 1.2, "top_k": 40}
    if rng.random() < 0.2:
        common |= {"stop": (str(rng.choice(WORDS)), ".")}
    prompt = " ".join(rng.choice(WORDS, rng.integers(1, 40)))
    return prompt, SamplingParams(**common), DraftParams(total, depth, top_k), int(rng.integers(1, 30))


def test_a_long_life_grows_nothing_and_changes_no_text(engine: Engine) -> None:
    """200 generations with random settings on one engine: every text equals its plain twin, memory stays flat."""
    rng = np.random.default_rng(0)
    process, sizes = psutil.Process(), []
    for number in range(N_GENERATIONS):
        prompt, params, draft, n_steps = random_settings(rng)
        drafted = engine.complete(prompt, params, draft)
        plain = engine.complete(prompt, params, PLAIN)
        assert (drafted.token_ids, drafted.text) == (plain.token_ids, plain.text), f"generation {number}"
        abandoned = engine.generate(prompt, params, draft)
        for _, _ in zip(range(n_steps % 3), abandoned, strict=False):
            pass
        abandoned.close()
        if number >= 20:
            sizes.append(process.memory_info().rss)
    assert max(sizes) - sizes[0] < 32 * 2**20


def test_useless_heads_cost_no_text(packaged_target: Path, tmp_path: Path) -> None:
    """A random head of the right shape accepts next to nothing and changes nothing."""
    config = dataclasses.replace(HEAD, **SMOLLM2, n_ff=256, n_vocab=49152, n_draft_vocab=512)
    head = write_head(tmp_path / "useless.gguf", config, head_tensors(config), tokenizer=False)
    params = SamplingParams(max_tokens=24)
    with Engine(packaged_target, head, TargetParams(n_ctx=256)) as engine:
        drafted = engine.complete("Once upon a time", params, DraftParams(16, 3, 4))
        assert drafted.stats.tau < 1.3
        assert drafted.token_ids == engine.complete("Once upon a time", params, PLAIN).token_ids
