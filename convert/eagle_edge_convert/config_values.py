"""Typed reads of a head's config.json, whatever its writer nested, and the refusal of mathematics nobody knows here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from eagle_edge.errors import FileFormatError

from .read import Checkpoint

__all__ = ["ConfigValues"]

# Keys that change what a layer computes, and the values under which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "kv_lora_rank": (),
    "q_lora_rank": (),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "mask_token_id": (),
    "layernorms": (False,),
    "add_para_norm": (False,),
    "use_aux_norm": (True, False),  # follows from the tensors
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "parallel_draft_heads_num_layers": (0, 1),
}


class ConfigValues:
    """A head's configuration: Speculators' layer keys lie under ``transformer_layer_config``, others at the top.

    Switches of EAGLE are looked up under ``eagle_config`` first, where SpecForge and ModelOpt put them.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        top = checkpoint.config
        layer = self._object(top, "transformer_layer_config")
        self.values: Mapping[str, Any] = {**layer, **{key: value for key, value in top.items() if value is not None}}
        self.nested = self._object(top, "eagle_config")
        self.is_speculators = "speculators_model_type" in top or bool(layer)

    def _object(self, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = values.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(f"config.json: {key} is {value!r}, expected an object")
        return value or {}

    def fail(self, message: str) -> NoReturn:
        """Raise a FileFormatError that begins with the folder."""
        raise FileFormatError(f"{self.checkpoint.folder}: {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default the key must be there."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                self.fail(f"config.json has no {key}")
            return default
        if type(value) is not int:
            self.fail(f"config.json: {key} is {value!r}, expected a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            self.fail(f"config.json: {key} is {value!r}, expected a number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """A switch under ``eagle_config`` or at the top; None where nobody set it."""
        value = self.nested.get(key, self.values.get(key))
        if value is not None and type(value) is not bool:
            self.fail(f"config.json: {key} is {value!r}, expected true or false")
        return value

    def layer_ids(self, value: Any) -> tuple[int, ...]:
        """``value`` as layer numbers."""
        if not isinstance(value, list) or not all(type(layer) is int for layer in value):
            self.fail(f"config.json: the layer ids are {value!r}, expected a list of whole numbers")
        return tuple(value)

    def refuse_unknown_mathematics(self) -> None:
        """Fail by name where a key asks for something that no EAGLE graph here computes.

        Raises:
            FileFormatError: such a key.
        """
        for key, neutral in _NEUTRAL.items():
            value = self.nested.get(key, self.values.get(key))
            if value is not None and value not in neutral:
                self.fail(f"config.json: {key} is {value!r}, which no known EAGLE head computes")
        if self.values.get("quantization_config") is not None:
            self.fail("config.json: quantization_config says that the weights are quantised; get the unquantised head")
        if (self.checkpoint.folder / "hf_quant_config.json").exists():
            self.fail("hf_quant_config.json says that the weights are quantised; get the unquantised head")
