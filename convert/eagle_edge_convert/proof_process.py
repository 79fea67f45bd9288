"""Runs a checkpoint in transformers and its GGUF in the engine; started by ``proof.prove_model``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

N_POSITIONS = 48

Float32 = npt.NDArray[np.float32]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Compare as ``job`` says."""
    try:
        import torch
        import transformers
    except ImportError as error:
        return {"skipped": f"{error.name} is not installed"}
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    theirs = _token_ids(transformers, job)
    ids, mine, same = _engine(job, theirs)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            job["checkpoint"],
            dtype=getattr(torch, job["dtype"]),
            trust_remote_code=job["trust_remote_code"],
            local_files_only=True,
        )
    except (ValueError, KeyError, ImportError) as error:
        return {"skipped": f"transformers cannot load the source ({' '.join(str(error).split())[:200]})"}
    with torch.inference_mode():
        source = model(torch.tensor([ids])).logits[0].float().numpy()
    width = min(source.shape[1], mine.shape[1])
    a, b = source[:, :width], mine[:, :width]
    # A shift of all logits of a position alike changes no probability.
    shifted = a - b - (a - b).mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean((a - a.mean(axis=1, keepdims=True)) ** 2))
    return {
        "n_tokens": len(ids),
        "max_difference": float(np.abs(shifted).max()),
        "relative_error": float(np.sqrt(np.mean(shifted**2)) / spread),
        "top1_agreement": float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        "same_tokens": same,
        "dtype": job["dtype"],
    }


def _token_ids(transformers: Any, job: dict[str, Any]) -> list[int] | None:
    """The text as the source's own tokenizer cuts it, or None where it cannot be loaded."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            job["checkpoint"], trust_remote_code=job["trust_remote_code"], local_files_only=True
        )
        return list(tokenizer(job["text"], add_special_tokens=False)["input_ids"])
    except Exception:  # many tokenizers, many ways to fail; only their comparison is lost
        return None


def _engine(job: dict[str, Any], theirs: list[int] | None) -> tuple[list[int], Float32, bool | None]:
    """Token ids, the engine's logits [n, V] for them, and whether both tokenizers agree."""
    from eagle_edge.config import TargetParams
    from eagle_edge.target import Target
    from eagle_edge.tree import chain

    # The plainest kernels there are: what is compared is the file.
    plain: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "kernels": "llama.cpp"}
    params = TargetParams(n_ctx=128, n_batch=64, repack=False, **plain)
    with Target(job["file"], params) as target:
        text = target.tokenize(job["text"], add_special=False)
        ids = [token for token in (target.bos,) if token >= 0 and target.adds_bos] + text
        ids = ids[:N_POSITIONS]
        evaluation = target.eval_tree(chain(ids[0], np.array(ids[1:], np.int32)))
        logits = np.stack([evaluation.logits(node) for node in range(len(ids))])
    return ids, logits, None if theirs is None else theirs == text


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    try:
        _answer = run(_job)
    except Exception as _error:  # whatever happens becomes one line
        _answer = {"error": f"{type(_error).__name__}: {' '.join(str(_error).split())[:300]}"}
    Path(_job["answer"]).write_text(json.dumps(_answer))
