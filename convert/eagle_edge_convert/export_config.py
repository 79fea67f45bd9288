"""config.json of an exported head, in the words of three projects, and what each of them cannot say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from eagle_edge.head_format import HeadConfig

__all__ = ["FORMATS", "export_config", "inexpressible"]

IDS = "eagle_aux_hidden_state_layer_ids"

FORMATS = ("specforge", "speculators", "safeailab")
# The switches beyond plain EAGLE-3 (and plain EAGLE-1) that a format has a word for.
_WORDS = {
    "safeailab": ({"fc_bias", "qkv_bias"}, set()),
    "specforge": (None, {"fc_norm", "norm_output"}),
    "speculators": (
        {"fc_bias"},
        {
            "fc_norm",
            "norm_output",
            "norm_before_residual",
            "norm_before_fc",
            "qk_norm",
            "qkv_bias",
            "output_bias",
            "mlp_bias",
        },
    ),
}
_FLAGS = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "fc_bias",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
)


def inexpressible(config: HeadConfig, format_: str, n_layer_target: int | None) -> list[str]:
    """What of the head the format has no word for; a reader would run it wrongly."""
    eagle1, eagle3 = _WORDS[format_]
    words = eagle1 if config.kind == "eagle1" else eagle3
    if words is None:
        return ["EAGLE-1"]
    out = [flag for flag in _FLAGS if getattr(config, flag) and flag not in words]
    if format_ != "speculators":
        out += [f"{config.n_layer} layers"] * (config.n_layer > 1) + ["a sliding window"] * bool(config.sliding_window)
    if not config.fc:
        out.append("a head without fc")
    elif config.kind == "eagle3" and format_ == "safeailab":
        if n_layer_target is None or config.taps != (2, n_layer_target // 2, n_layer_target - 3):
            out.append(f"the taps {list(config.taps)} (give --target if they are its defaults)")
        if config.rope_scaling is not None or config.rope_factors:
            out.append("rope scaling")
        if config.head_dim * config.n_head != config.n_embd:
            out.append(f"a head width of {config.head_dim}")
    if format_ == "speculators" and config.qkv_bias != config.output_bias:
        out.append("biases of q, k, v without one of the output")
    return out


def export_config(
    config: HeadConfig, format_: str, dtype: str, llama3: Mapping[str, Any] | None, target_name: str
) -> dict[str, Any]:
    """The object of config.json."""
    layer = _layer(config, llama3)
    if format_ == "speculators":
        return _speculators(config, layer, dtype, target_name)
    top = {
        "architectures": ["LlamaForCausalLMEagle3" if format_ == "specforge" else "LlamaForCausalLM"],
        **layer,
        "torch_dtype": dtype,
        "tie_word_embeddings": False,
    }
    if config.kind == "eagle1":
        return {**top, "bias": config.fc_bias, "qkv_bias": config.qkv_bias}
    top["draft_vocab_size"] = config.n_draft_vocab
    if config.n_embd != config.n_embd_target:
        top["target_hidden_size"] = config.n_embd_target
    if format_ == "specforge":
        top |= {"fc_norm": config.fc_norm, "norm_output": config.norm_output, IDS: list(config.taps)}
        top["eagle_config"] = {IDS: _sglang_ids(config.taps), "use_aux_hidden_state": True}
    return top


def _sglang_ids(taps: tuple[int, ...]) -> list[int]:
    """SGLang adds one to lists that start at 1 and takes others as they are."""
    return [tap - 1 for tap in taps] if taps[0] == 2 else list(taps)


def _speculators(config: HeadConfig, layer: dict[str, Any], dtype: str, target_name: str) -> dict[str, Any]:
    eagle1 = config.kind == "eagle1"
    algorithm = "eagle" if eagle1 else "eagle3"
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    if config.sliding_window:
        layer |= {"layer_types": ["sliding_attention"] * config.n_layer, "sliding_window": config.sliding_window}
    top: dict[str, Any] = {
        "architectures": ["EagleSpeculator" if eagle1 else "Eagle3Speculator"],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
        "transformer_layer_config": layer,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    if eagle1:
        return {**top, "layernorms": False, "fusion_bias": config.fc_bias}
    flags = {
        flag: getattr(config, flag) for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    }
    return {
        **top,
        **flags,
        IDS: list(config.taps),
        "draft_vocab_size": config.n_draft_vocab,
        "target_hidden_size": None if config.n_embd == config.n_embd_target else config.n_embd_target,
    }


def _layer(config: HeadConfig, llama3: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Llama-like part."""
    out: dict[str, Any] = {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head_kv,
        "head_dim": config.head_dim,
        "vocab_size": config.n_vocab,
        "max_position_embeddings": config.n_ctx,
        "rms_norm_eps": shortest(config.rms_eps),
        "rope_theta": shortest(config.rope_theta),
        "attention_bias": config.qkv_bias and config.output_bias,
        "mlp_bias": config.mlp_bias,
    }
    if llama3 is not None:
        out["rope_scaling"] = dict(llama3)
    elif config.rope_scaling is not None:
        scaling = config.rope_scaling
        out["rope_scaling"] = {"rope_type": scaling.kind, "factor": shortest(scaling.factor)}
        if scaling.kind == "yarn":
            own = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
            out["rope_scaling"] |= {
                "original_max_position_embeddings": scaling.original_n_ctx,
                "attention_factor": scaling.attention_factor * own,
                "beta_fast": shortest(scaling.beta_fast),
                "beta_slow": shortest(scaling.beta_slow),
            }
    return out


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF keeps 1e-05 as 9.999999747378752e-06."""
    import numpy as np

    return float(json.loads(str(np.float32(value))))
