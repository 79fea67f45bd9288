"""Which GGUF tensor each checkpoint tensor becomes; None drops it on purpose.

Every trainer's names are first brought to one spelling, ``layers.N.`` for the decoder layers:

    SafeAILab EAGLE-3, SpecForge, AngelSlim   midlayer.*
    SafeAILab EAGLE-1/2, Speculators, ModelOpt layers.N.*
    NeMo Automodel                            model.layers.N.*
    Speculators, its first EAGLE              transformer.*, fusion_fc
    SGLang, its first EAGLE-3.1               aux_norm_low, aux_norm_mid, aux_norm_high
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle_edge.head_format import HeadConfig

__all__ = ["ROTATED", "canonical_name", "checkpoint_names", "gguf_name"]

_PREFIXES = ("module.", "draft_model.", "model.")
_SPELLINGS = (
    ("midlayer.", "layers.0."),
    ("transformer.", "layers.0."),
    ("fusion_fc.", "fc."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)

_LAYER = {
    **{f"self_attn.{x}_proj.{part}": f"attn_{x}.{part}" for x in "qkv" for part in ("weight", "bias")},
    **{f"self_attn.{x}_norm.weight": f"attn_{x}_norm.weight" for x in "qk"},
    **{f"self_attn.o_proj.{part}": f"attn_output.{part}" for part in ("weight", "bias")},
    **{f"mlp.{x}_proj.{part}": f"ffn_{x}.{part}" for x in ("gate", "up", "down") for part in ("weight", "bias")},
    "input_layernorm.weight": "attn_norm.weight",
    "hidden_norm.weight": "attn_norm_2.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.rotary_emb.inv_freq": None,  # follows from the configuration
}
_WHOLE = {
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
    "t2d": None,  # the inverse of d2t, checked against it
}

# Their rows are reordered within every attention head, see rope_row_order.
ROTATED = (
    "attn_q.weight",
    "attn_k.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
)


def canonical_name(name: str) -> str:
    """The one spelling of a tensor's name."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for theirs, ours in _SPELLINGS:
        if name.startswith(theirs):
            name = ours + name[len(theirs) :]
    # SGLang calls the input norm of further layers hidden_norm.
    return re.sub(r"^(layers\.[1-9]\d*)\.hidden_norm\.", r"\1.input_layernorm.", name)


def gguf_name(name: str) -> str | None:
    """The GGUF name of a canonical one; None is dropped on purpose.

    Raises:
        KeyError: no layout has a tensor of this name.
    """
    if match := re.fullmatch(r"layers\.(\d{1,3})\.(.*)", name):
        part = _LAYER[match[2]]
        return part and f"blk.{int(match[1])}.{part}"
    if re.fullmatch(r"fc_norm\.\d{1,2}\.weight", name):
        return name
    return _WHOLE[name]


def checkpoint_names(config: HeadConfig, format_: str) -> dict[str, str]:
    """GGUF name to the name that an exported checkpoint of this format uses."""
    eagle1 = config.kind == "eagle1"
    layer = "layers.0." if format_ == "speculators" or eagle1 else "midlayer."
    if format_ == "speculators" and eagle1:
        layer = "transformer."
    out = {ours: theirs for theirs, ours in _WHOLE.items() if ours is not None}
    out |= {f"fc_norm.{k}.weight": f"fc_norm.{k}.weight" for k in range(len(config.taps))}
    for index in range(config.n_layer):
        prefix = layer if index == 0 else f"layers.{index}."
        out |= {f"blk.{index}.{ours}": prefix + theirs for theirs, ours in _LAYER.items() if ours is not None}
    if format_ == "speculators" and eagle1:
        out |= {f"fc.{part}": f"fusion_fc.{part}" for part in ("weight", "bias")}
    return out
