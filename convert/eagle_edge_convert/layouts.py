"""From a checkpoint's config.json and tensor shapes to one ``HeadConfig``.

Shapes outrank the configuration, which is known to lie about layer counts and head sizes; what a trainer leaves unsaid
is filled in by the rule of that trainer, and every guess is reported. Unknown mathematics is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from eagle_edge.errors import FileFormatError, PairError
from eagle_edge.head_format import HeadConfig, RopeScaling

from .read import Checkpoint
from .target import TargetFacts

__all__ = ["HeadOverrides", "describe_eagle3", "rope_factors"]


@dataclass(frozen=True, slots=True)
class HeadOverrides:
    """What the user knows better than the checkpoint; None leaves it to the rules."""

    taps: tuple[int, ...] | None = None
    rope_theta: float | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None


def describe_eagle3(
    checkpoint: Checkpoint, target: TargetFacts, overrides: HeadOverrides
) -> tuple[HeadConfig, list[str]]:
    """The head, and one sentence for each thing that was guessed.

    Raises:
        FileFormatError: not this layout, a key has another type, or the mathematics is unknown here.
        PairError: the head was made for a target of another size.
    """
    notes: list[str] = []
    reader = _Reader(checkpoint)
    if "midlayer.hidden_norm.weight" not in checkpoint.tensors or "fc.weight" not in checkpoint.tensors:
        reader.fail(
            "no midlayer.hidden_norm.weight and fc.weight: not an EAGLE-3 head in the SafeAILab or SpecForge layout"
        )
    reader.refuse_unknown_mathematics()
    H, fc_in = reader.shape("fc.weight", 2)
    q_rows, q_columns = reader.shape("midlayer.self_attn.q_proj.weight", 2)
    kv_rows = reader.shape("midlayer.self_attn.k_proj.weight", 2)[0]
    if q_columns != 2 * H:
        reader.fail(f"q_proj reads {q_columns} values, an EAGLE-3 head of width {H} reads {2 * H}")
    n_head = reader.get("num_attention_heads", int)
    n_head_kv = reader.get("num_key_value_heads", int, n_head)
    if (
        n_head < 1
        or n_head_kv < 1
        or q_rows % n_head
        or kv_rows % n_head_kv
        or q_rows // n_head != kv_rows // n_head_kv
    ):
        reader.fail(f"{n_head} and {n_head_kv} heads do not divide {q_rows} and {kv_rows} rows of q and k")
    if fc_in % target.n_embd:
        raise PairError(
            f"{checkpoint.folder}: fc reads {fc_in} values, not a multiple of the target's width {target.n_embd}"
        )
    R = reader.shape("lm_head.weight", 2)[0] if "lm_head.weight" in checkpoint.tensors else target.n_vocab
    taps = _taps(reader, target, fc_in // target.n_embd, overrides, notes)
    scaling, factors = _rope_scaling(reader)
    try:
        config = HeadConfig(
            taps=taps,
            n_embd=H,
            n_embd_target=target.n_embd,
            n_ff=reader.shape("midlayer.mlp.gate_proj.weight", 2)[0],
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=q_rows // n_head,
            n_vocab=target.n_vocab,
            n_draft_vocab=R,
            n_ctx=reader.get("max_position_embeddings", int, 2048),
            rms_eps=reader.get("rms_norm_eps", float, 1e-6),
            rope_theta=overrides.rope_theta or _rope_theta(reader, notes),
            rope_scaling=scaling,
            rope_factors=factors is not None,
            norm_before_residual=reader.flag("norm_before_residual", overrides.norm_before_residual),
            norm_before_fc=reader.flag("norm_before_fc", overrides.norm_before_fc),
            fc_norm=reader.flag("fc_norm"),
            norm_output=reader.flag("norm_output"),
        )
    except ValueError as error:
        reader.fail(str(error))
    return config, notes


class _Reader:
    """Typed reads of a checkpoint's configuration and shapes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        nested = self.config.get("eagle_config")
        self.nested: Mapping[str, Any] = nested if isinstance(nested, dict) else {}

    def fail(self, message: str) -> NoReturn:
        raise FileFormatError(f"{self.checkpoint.folder}: {message}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.config.get(key)
        if value is None:
            if default is None:
                self.fail(f"config.json has no {key}")
            return default
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            self.fail(f"config.json: {key} is {value!r}, expected {kind.__name__}")
        return value

    def flag(self, key: str, override: bool | None = None) -> bool:
        """A switch at the top level or under ``eagle_config``; absent means off, as in these trainers."""
        if override is not None:
            return override
        value = self.nested.get(key, self.config.get(key, False))
        if value is None:
            return False
        if type(value) is not bool:
            self.fail(f"config.json: {key} is {value!r}, expected true or false")
        return value

    def shape(self, name: str, n_dimensions: int) -> tuple[int, ...]:
        tensor = self.checkpoint.tensors.get(name)
        if tensor is None:
            self.fail(f"the tensor {name} is missing")
        if len(tensor.shape) != n_dimensions:
            self.fail(f"the tensor {name} has shape {list(tensor.shape)}, expected {n_dimensions} dimensions")
        return tensor.shape

    def refuse_unknown_mathematics(self) -> None:
        act = self.config.get("hidden_act", "silu")
        if act not in ("silu", "swish"):
            self.fail(f"config.json: hidden_act is {act!r}; only silu is understood")
        for key in ("attention_bias", "mlp_bias", "bias", "qkv_bias", "use_sliding_window"):
            if self.config.get(key):
                self.fail(f"config.json: {key} is on, which this layout does not know")
        if self.nested.get("use_aux_hidden_state") is False:
            self.fail("config.json: use_aux_hidden_state is false, which this layout does not know")


def _taps(
    reader: _Reader, target: TargetFacts, n_taps: int, overrides: HeadOverrides, notes: list[str]
) -> tuple[int, ...]:
    """Boundaries (the stream entering layer b). Trainers store either those or layer outputs, one less."""
    if overrides.taps is not None:
        taps = overrides.taps
    elif (ids := reader.config.get("eagle_aux_hidden_state_layer_ids")) is not None:
        taps = _integers(reader, ids)
    elif (
        ids := reader.nested.get("eagle_aux_hidden_state_layer_ids", reader.config.get("aux_hidden_states_layer_ids"))
    ) is not None:
        taps = _integers(reader, ids)
        if taps and taps[0] == 1:
            taps = tuple(tap + 1 for tap in taps)
            notes.append(f"the layer ids start at 1, so they count outputs: read as boundaries {list(taps)}")
        else:
            notes.append(f"the layer ids {list(taps)} are read as boundaries; --tap-layers overrides")
    else:
        taps = (2, target.n_layer // 2, target.n_layer - 3)
        notes.append(f"no layer ids are stored: the default boundaries {list(taps)}")
    if len(taps) != n_taps:
        raise PairError(
            f"{reader.checkpoint.folder}: fc reads {n_taps} taps of width {target.n_embd}, but {len(taps)} are named"
        )
    if any(not 0 <= tap <= target.n_layer for tap in taps):
        raise PairError(f"{reader.checkpoint.folder}: taps {list(taps)} are not in the target's 0..{target.n_layer}")
    return taps


def _integers(reader: _Reader, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        reader.fail(f"config.json: the layer ids are {values!r}, expected a list of integers")
    return tuple(values)


def _rope_theta(reader: _Reader, notes: list[str]) -> float:
    parameters = reader.config.get("rope_parameters")
    if isinstance(parameters, dict) and parameters.get("rope_theta") is not None:
        return float(parameters["rope_theta"])
    if reader.config.get("rope_theta") is None:
        notes.append("no rope_theta is stored: 10000, which these trainers use; --rope-theta overrides")
    return float(reader.get("rope_theta", float, 10000.0))


def _scaling(reader: _Reader) -> Mapping[str, Any]:
    parameters = reader.config.get("rope_parameters") or reader.config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        reader.fail(f"config.json: rope scaling is {parameters!r}, expected an object")
    return parameters


def _rope_scaling(reader: _Reader) -> tuple[RopeScaling | None, Mapping[str, Any] | None]:
    """The scaling as keys, or as llama3 parameters that become a tensor."""
    values = _scaling(reader)
    kind = values.get("rope_type", values.get("type", "default"))
    n_ctx = reader.get("max_position_embeddings", int, 2048)
    if kind == "default":
        return None, None
    if kind == "llama3":
        return None, values
    if kind not in ("linear", "yarn"):
        reader.fail(f"config.json: rope scaling {kind!r} is not understood; known are default, linear, llama3 and yarn")
    try:
        scaling = RopeScaling(
            kind,
            float(values["factor"]),
            int(values.get("original_max_position_embeddings", n_ctx)),
            beta_fast=float(values.get("beta_fast", 32.0)),
            beta_slow=float(values.get("beta_slow", 1.0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        reader.fail(f"config.json: rope scaling {dict(values)!r} is not understood ({error})")
    return scaling, None


def rope_factors(checkpoint: Checkpoint, config: HeadConfig) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[head_dim/2] what llama3 scaling divides each frequency by: 1 for fast, ``factor`` for slow, a blend between.

    After transformers' ``_compute_llama3_parameters``.
    """
    reader = _Reader(checkpoint)
    values = _scaling(reader)
    try:
        factor, low, high = (float(values[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        original = float(values["original_max_position_embeddings"])
    except (KeyError, TypeError, ValueError) as error:
        reader.fail(f"config.json: llama3 rope scaling {dict(values)!r} is not understood ({error})")
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    turns = original * config.rope_theta**-exponents / (2 * np.pi)  # of each frequency over the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - blend) / factor + blend)).astype(np.float32)
