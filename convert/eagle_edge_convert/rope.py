"""The rotary embedding of a head, from the keys Transformers uses to the keys and the tensor of GGUF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.head_format import RopeScaling

from .config_values import ConfigValues

__all__ = ["ROPE_KEY", "read_rope_scaling", "read_rope_theta", "rope_factors", "rope_parameters"]

ROPE_KEY = "eagle_edge.rope_scaling"  # the GGUF key that keeps llama3's parameters as JSON


def read_rope_theta(config: ConfigValues, override: float | None, notes: list[str]) -> float:
    """The base that the head was trained with, which is not always the one its configuration names.

    Raises:
        FileFormatError: not a positive number.
    """
    if override is not None:
        return override
    parameters = config.values.get("rope_parameters")
    stored = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    stored = config.values.get("rope_theta") if stored is None else stored
    if stored is None:
        notes.append("no rope_theta is stored: 10000, which these trainers use; --rope-theta overrides")
        return 10000.0
    if type(stored) not in (int, float) or not math.isfinite(stored) or stored <= 0:
        config.fail(f"config.json: rope_theta is {stored!r}, expected a positive number")
    if "aux_hidden_states_layer_ids" in config.values and stored != 10000 and _kind(_scaling(config)) != "mrope":
        notes.append(
            f"rope_theta is stored as {stored:g}, but AngelSlim trains with 10000, which is used; "
            "--rope-theta overrides"
        )
        return 10000.0
    return float(stored)


def read_rope_scaling(config: ConfigValues, notes: list[str]) -> tuple[RopeScaling | None, bool]:
    """The scaling as keys, and whether it is of llama3's kind, which becomes a tensor (``rope_factors``).

    Raises:
        FileFormatError: a scaling that is not understood.
    """
    values = _scaling(config)
    kind = _kind(values)
    n_ctx = config.integer("max_position_embeddings", 2048)
    if kind == "llama3":
        return None, True
    if kind in ("default", "mrope"):
        return None, False
    if kind == "dynamic":
        notes.append(f"dynamic rope scaling is left out: it changes nothing within {n_ctx} positions")
        return None, False
    if kind not in ("linear", "yarn") or values.get("truncate") is False:
        config.fail(f"config.json: the rope scaling {dict(values)!r} is not understood")
    try:
        factor = float(values["factor"])
        scaling = RopeScaling(
            kind,
            factor,
            int(values.get("original_max_position_embeddings") or n_ctx),
            attention_factor=_attention_factor(values, factor) if kind == "yarn" else 1.0,
            beta_fast=float(values.get("beta_fast") or 32.0),
            beta_slow=float(values.get("beta_slow") or 1.0),
        )
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        config.fail(f"config.json: the rope scaling {dict(values)!r} is not understood ({error!r})")
    if not all(map(math.isfinite, (factor, scaling.attention_factor, scaling.beta_fast, scaling.beta_slow))):
        config.fail(f"config.json: the rope scaling {dict(values)!r} is not finite")
    if factor == 32 and scaling.original_n_ctx == 2048 and kind == "yarn":
        notes.append("ModelOpt adds this YaRN scaling when it exports a head trained without; kept as its readers do")
    return scaling, False


def _attention_factor(values: Mapping[str, Any], factor: float) -> float:
    """What ggml multiplies its own 0.1 ln(factor) + 1 by, so that the product is Transformers' attention factor."""
    own = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if values.get("attention_factor") is not None:
        return float(values["attention_factor"]) / own
    if values.get("mscale") and values.get("mscale_all_dim"):
        return magnitude(float(values["mscale"])) / magnitude(float(values["mscale_all_dim"])) / own
    return 1.0


def rope_factors(config: ConfigValues, head_dim: int, rope_theta: float) -> npt.NDArray[np.float32]:
    """[head_dim/2] what llama3 scaling divides each frequency by: 1 for fast, ``factor`` for slow, a blend between.

    After transformers' ``_compute_llama3_parameters``.

    Raises:
        FileFormatError: a parameter is missing or impossible.
    """
    values = _scaling(config)
    try:
        factor, low, high = (float(values[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        original = float(values["original_max_position_embeddings"])
        exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
        turns = original * rope_theta**-exponents / (2 * np.pi)  # of each frequency over the original context
        blend = np.clip((turns - low) / (high - low), 0, 1)
        factors = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        config.fail(f"config.json: llama3 rope scaling {dict(values)!r} is not understood ({error!r})")
    if not np.isfinite(factors).all() or (factors <= 0).any():
        config.fail(f"config.json: llama3 rope scaling {dict(values)!r} is impossible")
    return factors


def rope_parameters(config: ConfigValues) -> dict[str, Any]:
    """The scaling as Transformers spells it."""
    kept = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {"rope_type": "llama3", **{key: _scaling(config)[key] for key in kept}}


def _scaling(config: ConfigValues) -> Mapping[str, Any]:
    values = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    if not isinstance(values, dict):
        config.fail(f"config.json: the rope scaling is {values!r}, expected an object")
    return values


def _kind(values: Mapping[str, Any]) -> str:
    kind = values.get("rope_type", values.get("type"))
    return "default" if kind is None else str(kind)
