"""Models of many architectures: saved by transformers, converted, checked, quantised, and drafted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

pytest.importorskip("torch")
pytest.importorskip("transformers")
import hf_models  # noqa: E402
from eagle_edge_convert import convert_head, convert_target  # noqa: E402
from eagle_edge_convert.proof import Proof  # noqa: E402

from eagle_edge.config import DraftParams, SamplingParams, TargetParams  # noqa: E402
from eagle_edge.engine import Engine  # noqa: E402
from eagle_edge.equality import compare  # noqa: E402
from eagle_edge.errors import FileFormatError  # noqa: E402
from eagle_edge.gguf_header import read_header  # noqa: E402

pytestmark = pytest.mark.native

PROMPT = "the river had risen in the night"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_models.save_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.mark.parametrize("architecture", hf_models.ARCHITECTURES)
def test_an_architecture_converts_and_is_drafted_for(architecture: str, tmp_path: Path) -> None:
    """The converted model has its source's logits, and a random head on it changes nothing but the speed."""
    folder = hf_models.save_model(tmp_path / "model", architecture)
    result = convert_target(folder, tmp_path / "model.gguf", "f32", pre_tokenizer="gpt-2")
    assert isinstance(result.proof, Proof), result.proof
    assert result.proof.top1_agreement == 1
    assert result.proof.same_tokens
    head = tiny.make_head(tmp_path / "head.gguf", taps=(2, 4, 5))
    engine = Engine(result.path, head, TargetParams(n_ctx=512, n_threads=1), draft_params=DraftParams(12, 3, 3))
    ids = engine.target.tokenize(PROMPT)
    n, mismatch = compare(engine, ("prompt", 0), ids, SamplingParams(max_tokens=60, ignore_eos=True), DraftParams(12, 3, 3))
    assert (60, None) == (n, mismatch)
