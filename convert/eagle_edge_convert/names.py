"""Which GGUF tensor each checkpoint tensor becomes; None drops it on purpose.

The layout of SafeAILab's EAGLE-3 and of SpecForge and AngelSlim, which use its names:
https://github.com/SafeAILab/EAGLE/blob/main/eagle/traineagle3/cnets.py
"""

from __future__ import annotations

__all__ = ["EAGLE3_NAMES", "ROTATED"]

_LAYER = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "hidden_norm.weight": "attn_norm_2.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}

EAGLE3_NAMES: dict[str, str | None] = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    **{f"fc_norm.{tap}.weight": f"fc_norm.{tap}.weight" for tap in range(16)},
    **{f"midlayer.{name}": f"blk.0.{target}" for name, target in _LAYER.items()},
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
    "t2d": None,  # the inverse of d2t, checked against it
    "midlayer.self_attn.rotary_emb.inv_freq": None,  # follows from the configuration
}

# Their rows are reordered, see rope_row_order.
ROTATED = ("attn_q.weight", "attn_k.weight")
