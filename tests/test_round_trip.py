"""The packaged model as a Hugging Face folder and back: the converter on a real model, and the shipped head on it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import hf_models
from eagle_edge_convert import convert_target
from eagle_edge_convert.proof import Proof

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.equality import compare
from eagle_edge.gguf_header import read_header

pytestmark = [pytest.mark.native, pytest.mark.model]

PROMPT = "<|im_start|>user\nWrite three sentences about a river.<|im_end|>\n<|im_start|>assistant\n"


def test_the_packaged_model_comes_back(packaged_target: Path, packaged_head: Path, tmp_path: Path) -> None:
    """Its tokenizer is recognised, its logits are its source's, and the shipped head drafts for it exactly."""
    folder = hf_models.save_folder(packaged_target, tmp_path / "folder")
    result = convert_target(folder, tmp_path / "model.gguf", "q8_0")
    assert isinstance(result.proof, Proof), result.proof
    assert result.proof.same_tokens
    assert result.proof.top1_agreement > 0.85
    before, after = read_header(packaged_target), read_header(result.path)
    for key in ("pre", "tokens", "merges", "eos_token_id"):
        assert before.metadata[f"tokenizer.ggml.{key}"] == after.metadata[f"tokenizer.ggml.{key}"], key
    engine = Engine(result.path, packaged_head, TargetParams(n_ctx=512), draft_params=DraftParams(16, 4, 4))
    ids = engine.target.tokenize(PROMPT, parse_special=True)
    n, mismatch = compare(engine, ("prompt", 0), ids, SamplingParams(max_tokens=48, ignore_eos=True))
    assert (n, mismatch) == (48, None)
    assert engine.stats.tau > 1.5
