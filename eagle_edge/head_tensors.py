"""The tensors of a draft head: GGUF names, shapes, and the order of rotary rows. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .head_format import HeadConfig

__all__ = ["head_tensors", "rope_row_order"]


def head_tensors(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape (ggml's order) of every tensor the head must have."""
    H, E, K = config.n_embd, config.n_embd_target, len(config.taps)
    out: dict[str, tuple[int, ...]] = {}
    if config.fc:
        out["fc.weight"] = (2 * H if config.kind == "eagle1" else K * E, H)
    if config.fc_bias:
        out["fc.bias"] = (H,)
    if config.norm_before_fc:
        out["enc.output_norm.weight"] = (K * E,)
    if config.fc_norm:
        out.update({f"fc_norm.{k}.weight": (E,) for k in range(K)})
    for layer in range(config.n_layer):
        out.update({f"blk.{layer}.{name}": shape for name, shape in _layer_tensors(config, layer).items()})
    if config.kind == "eagle3":
        out["output_norm.weight"] = (H,)
    if config.rope_factors:
        out["rope_freqs.weight"] = (config.head_dim // 2,)
    if config.n_draft_vocab != config.n_vocab:
        out["d2t"] = (config.n_draft_vocab,)
    return out


def _layer_tensors(config: HeadConfig, layer: int) -> dict[str, tuple[int, ...]]:
    H, D, I = config.n_embd, config.head_dim, config.n_ff  # noqa: E741  the field's letter for the MLP width
    Q, KV = config.n_head * D, config.n_head_kv * D
    fused = config.kind == "eagle3" and layer == 0
    width = 2 * H if fused else H
    out: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (width, Q),
        "attn_k.weight": (width, KV),
        "attn_v.weight": (width, KV),
        "attn_output.weight": (Q, H),
        "ffn_norm.weight": (H,),
        "ffn_gate.weight": (H, I),
        "ffn_up.weight": (H, I),
        "ffn_down.weight": (I, H),
    }
    if config.kind == "eagle3" or layer > 0:
        out["attn_norm.weight"] = (H,)
    if fused:
        out["attn_norm_2.weight"] = (H,)
    if config.qkv_bias:
        out.update({"attn_q.bias": (Q,), "attn_k.bias": (KV,), "attn_v.bias": (KV,)})
    if config.output_bias:
        out["attn_output.bias"] = (H,)
    if config.qk_norm:
        out.update({"attn_q_norm.weight": (D,), "attn_k_norm.weight": (D,)})
    if config.mlp_bias:
        out.update({"ffn_gate.bias": (I,), "ffn_up.bias": (I,), "ffn_down.bias": (H,)})
    return out


def rope_row_order(head_dim: int) -> list[int]:
    """The row of a checkpoint's head (rotate-half) that each row of ours (pairs side by side, ggml's NORM) comes from.

    Apply it within every head to the rows of q and k: weights, biases and the q/k norm weights alike.
    """
    half = head_dim // 2
    return [pair + side * half for pair in range(half) for side in (0, 1)]
