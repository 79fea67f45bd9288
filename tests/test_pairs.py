"""Every pair that people bring: it drafts and the text is the target's, or one line says why not, before any token."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from eagle_edge.cli import main
from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.errors import EagleEdgeError

pytestmark = pytest.mark.native

Make = Callable[[Path], Path]
PROMPT = "the river had risen"
EAGLE1 = {"kind": "eagle1", "taps": (-1,), "n_draft_vocab": tiny.N_VOCAB, "own_output": False}


def switched(**switches: Any) -> Make:
    return lambda path: tiny.make_head(path, **switches)


def edited(change: Callable[[dict[str, Any]], object], **keys: Any) -> Make:
    """A head whose tensors are changed, or whose file says something else of itself than its tensors do."""

    def make(path: Path) -> Path:
        tensors = tiny.head_tensors(tiny.HEAD)
        change(tensors)
        return tiny.write_head(path, dataclasses.replace(tiny.HEAD, **keys), tensors)

    return make


def other_tokenizer(path: Path) -> Path:
    words, types, merges = tiny.vocabulary()
    words[40], words[41] = words[41], words[40]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "vocabulary", lambda: (words, types, merges))
        return tiny.make_head(path)


def offset(tensors: dict[str, Any], change: int) -> None:
    tensors["d2t"] = np.append(tensors["d2t"][:-1], tensors["d2t"][-1] + change)


def put(name: str, value: float) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors[name].__setitem__((0, 0), value)


LOADS: dict[str, Make | None] = {
    "no head": None,
    "EAGLE-3": switched(),
    "EAGLE-1": switched(**EAGLE1),
    "no lm_head": switched(own_output=False),
    "an embedding of its own": switched(own_embedding=True),
    "fc bias": switched(fc_bias=True),
    "two layers": switched(n_layer=2),
    "four taps": switched(taps=(1, 2, 3, 4)),
    "layer id -1": switched(taps=(-1, 2, 3)),
    "padded vocabulary": edited(lambda tensors: None, n_vocab=384),
    "useless": edited(lambda tensors: tensors["output.weight"].fill(0)),
}
FAILS: dict[str, tuple[Make, str]] = {
    "other width": (switched(n_embd_target=96), "96 wide, the target's are 64"),
    "other vocabulary size": (switched(n_vocab=300), "knows 300 tokens, the target has 320"),
    "narrow, without an embedding": (switched(n_embd=32, head_dim=8), "32 wide and lacks token_embd.weight"),
    "same size, other tokenizer": (other_tokenizer, "another tokenizer"),
    "d2t out of range": (edited(lambda t: offset(t, tiny.N_VOCAB)), "outside the vocabulary of 320"),
    "d2t int32": (edited(lambda t: t.update(d2t=t["d2t"].astype(np.int32))), "stored as I32, it must be I64"),
    "d2t duplicated": (edited(lambda t: t["d2t"].__setitem__(0, t["d2t"][1])), "are both"),
    "layer id 99": (switched(taps=(2, 3, 99)), "taps layer 99, the target has 6"),
    "NaN weights": (edited(put("fc.weight", np.nan)), "fc.weight"),
    "infinite weights": (edited(put("output.weight", np.inf)), "output.weight"),
}


def inspected(target: Path, head: Path | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and standard error of ``eagle-edge inspect``."""
    arguments = ["inspect", "--target", str(target), "--n-ctx", "256", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--head", str(head)] if head is not None else arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(out or "{}"), err


@pytest.mark.parametrize("name", LOADS)
def test_a_pair_that_loads(name: str, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``inspect`` says that it fits, and the drafted text is the plain one."""
    make = LOADS[name]
    head = make(tmp_path / "head.gguf") if make is not None else None
    code, report, _ = inspected(tiny_target, head, capsys)
    assert code == 0
    assert report.get("fits", True)
    loading, tree = TargetParams(n_ctx=256, n_threads=1), DraftParams(9, 2, 3)
    with Engine(tiny_target, head, loading, draft_params=tree, exact="strict") as engine:
        params = SamplingParams(max_tokens=24, ignore_eos=True)
        drafted = engine.complete(PROMPT, params)
        assert (drafted.stats.draft_n > 0) == (head is not None)
        engine.reset()
        assert engine.complete(PROMPT, params, DraftParams(1)).token_ids == drafted.token_ids


@pytest.mark.parametrize("name", FAILS)
def test_a_pair_that_does_not(name: str, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and one line with the cause, from ``inspect`` and from loading alike."""
    make, message = FAILS[name]
    head = make(tmp_path / "head.gguf")
    code, report, err = inspected(tiny_target, head, capsys)
    assert code == 1
    assert message in (err or report["differences"][0])
    assert len(err.splitlines()) <= 1
    with pytest.raises(EagleEdgeError, match=message.replace("(", ".")) as caught:
        Engine(tiny_target, head, TargetParams(n_ctx=256, n_threads=1))
    assert "\n" not in str(caught.value)


def test_places_exchanged(tiny_target: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A target given as head, and a head given as target, are called what they are."""
    code, report, err = inspected(tiny_target, tiny_target, capsys)
    assert (code, err) == (1, "")
    assert "is the target itself, not a draft head" in report["differences"][0]
    code, report, err = inspected(tiny_head, tiny_target, capsys)
    assert code == 1
    assert "is a draft head, not a target" in (err or report["differences"][0])
