"""Which layers a head reads, as each of its trainers says it; every guess is announced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eagle_edge_convert.config_values import ConfigValues
from eagle_edge_convert.layouts import HeadOverrides
from eagle_edge_convert.read import Checkpoint
from eagle_edge_convert.rope import read_rope_scaling, read_rope_theta
from eagle_edge_convert.taps import read_taps
from eagle_edge_convert.target import TargetFacts

from eagle_edge.errors import EagleEdgeError, PairError

IDS = "eagle_aux_hidden_state_layer_ids"


def values(config: dict[str, Any]) -> ConfigValues:
    return ConfigValues(Checkpoint(Path("head"), config, {}))


def taps(config: dict[str, Any], n_layer: int, override: tuple[int, ...] | None = None) -> tuple[Any, list[str]]:
    notes: list[str] = []
    facts = TargetFacts(Path("t.gguf"), "t", n_embd=64, n_layer=n_layer, n_vocab=320)
    return read_taps(values(config), facts, 3, override, notes), notes


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {IDS: list(ids)}}


# What a published head stores, the layers of its target, the boundaries it was trained on, and a word of the note.
PUBLISHED = {
    "SafeAILab Llama-3.1-8B": ({}, 32, (2, 16, 29), "no layer ids"),
    "RedHat Qwen3-8B": ({IDS: [2, 18, 33]}, 36, (2, 18, 33), None),
    "SpecForge gpt-oss-20B": (nested(1, 11, 21), 24, (2, 12, 22), "count outputs: boundaries"),
    "SpecForge gpt-oss-120B": (nested(1, 17, 33), 36, (2, 18, 34), "count outputs: boundaries"),
    "SpecForge DeepSeek-V3": (nested(1, 29, 57), 61, (2, 30, 58), "count outputs: boundaries"),
    "AQ-MedAI Kimi-K2": (nested(2, 30, 58), 61, (2, 30, 58), "can only be boundaries"),
    "NVIDIA gpt-oss-120B v3": (nested(24, 30, 36), 36, (24, 30, 36), "can only be boundaries"),
    "NVIDIA gpt-oss-120B long context": (nested(1, 17, 32), 36, (2, 18, 33), "count outputs: boundaries"),
    "Step-3.5": (nested(4, 20, 40), 45, (4, 20, 40), "--tap-layers 5,21,41"),
    "AngelSlim Qwen3-4B": ({"aux_hidden_states_layer_ids": [1, 17, 32]}, 36, (2, 18, 33), "count outputs: boundaries"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_heads(name: str) -> None:
    """Every convention comes out as boundaries, and what was guessed is said."""
    config, n_layer, expected, note = PUBLISHED[name]
    found, notes = taps(config, n_layer)
    assert expected == found
    assert (note is None and not notes) or (len(notes) == 1 and note is not None and note in notes[0])


def test_the_user_outranks_the_checkpoint() -> None:
    """``--tap-layers`` is taken as it is, without a guess."""
    assert taps(nested(1, 11, 21), 24, (3, 7, 11)) == ((3, 7, 11), [])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({IDS: [-1, 4, 5]}, r"the layers \[-1, 4, 5\] are not in the target's 0\.\.24"),
        ({IDS: [2, 4, 99]}, r"99\] are not in the target's"),
        ({IDS: [2, 4]}, "fc reads 3 taps of width 64, but 2 layers are named"),
        ({IDS: [2, 2, 5]}, "not distinct"),
        ({IDS: "2,4,5"}, "expected a list of whole numbers"),
        ({"eagle_config": 3}, "eagle_config is 3, expected an object"),
    ],
)
def test_impossible_layers_are_refused(config: dict[str, Any], message: str) -> None:
    """One line names the layers and what there is."""
    with pytest.raises(EagleEdgeError, match=message):
        taps(config, 24)


def test_too_small_a_target_has_no_default() -> None:
    """Six layers would be tapped twice: the user has to say which."""
    with pytest.raises(PairError, match="--tap-layers"):
        taps({}, 6)


@pytest.mark.parametrize(
    ("config", "expected", "note"),
    [
        ({}, 10000.0, "no rope_theta is stored"),
        ({"rope_theta": 500000}, 500000.0, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_theta": 1e6, "aux_hidden_states_layer_ids": [1, 2, 3]}, 10000.0, "AngelSlim trains with 10000"),
    ],
)
def test_rope_theta(config: dict[str, Any], expected: float, note: str | None) -> None:
    """The base that was trained with, which is not always the one that is stored."""
    notes: list[str] = []
    assert expected == read_rope_theta(values(config), HeadOverrides().rope_theta, notes)
    assert [note in line for line in notes if note] == [True] * (note is not None)
    assert read_rope_theta(values(config), 7.0, []) == 7.0


def test_yarn_attention_factors() -> None:
    """DeepSeek's two mscales and an explicit attention factor come out as what ggml multiplies its own by."""
    base = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    plain, _ = read_rope_scaling(values({"rope_scaling": base}), [])
    both, _ = read_rope_scaling(values({"rope_scaling": {**base, "mscale": 0.707, "mscale_all_dim": 0.707}}), [])
    own, _ = read_rope_scaling(values({"rope_scaling": {**base, "attention_factor": 1.0}}), [])
    assert plain is not None
    assert both is not None
    assert own is not None
    assert plain.attention_factor == 1
    assert pytest.approx(own.attention_factor) == both.attention_factor
    assert pytest.approx(1 / 1.36888794) == own.attention_factor
