"""The forward pass of a draft head in torch: the one definition, for the trainer and for tests of the runtime.

EAGLE-1, EAGLE-3 and EAGLE-3.1 with every switch of ``HeadConfig`` that their trainers know. Parameters carry the names
of SafeAILab's EAGLE-3 checkpoints (``midlayer.*``), so a state dict is a checkpoint. How steps are chained while
training is in ``unroll.py``; losses, data and files are elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..head_format import HeadConfig

__all__ = ["Head", "precise", "rotate"]


class RmsNorm(nn.Module):
    """RMS norm over the last dimension, with float32 statistics."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``x`` divided by the root of its mean square, times the weight; same dtype as ``x``."""
        scale = torch.rsqrt(precise(x).square().mean(-1, keepdim=True) + self.eps)
        return (x * scale * self.weight).to(x.dtype)


class Attention(nn.Module):
    """The four matrices of grouped-query attention.

    Its input is W wide: embedding and feature side by side (2H) in EAGLE-3, what fc made of the two (H) in EAGLE-1.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.n_head, self.n_head_kv, self.head_dim = config.n_head, config.n_head_kv, config.head_dim
        width, kv_width = _attention_width(config), config.n_head_kv * config.head_dim
        self.q_proj = nn.Linear(width, config.n_head * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.o_proj = nn.Linear(config.n_head * config.head_dim, config.n_embd, bias=False)

    def query(self, x: Tensor, angles: Tensor) -> Tensor:
        """[B, M, W] -> [B, n_head, M, head_dim], rotated by ``angles`` [B, M, head_dim/2]."""
        return rotate(self.q_proj(x).unflatten(-1, (self.n_head, self.head_dim)).transpose(1, 2), angles)

    def key_value(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """[B, M, W] -> rotated keys and values, each [B, n_head_kv, M, head_dim]."""
        shape = (self.n_head_kv, self.head_dim)
        key = rotate(self.k_proj(x).unflatten(-1, shape).transpose(1, 2), angles)
        return key, self.v_proj(x).unflatten(-1, shape).transpose(1, 2)


class Mlp(nn.Module):
    """The gated feed-forward block with SiLU."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.down_proj = nn.Linear(config.n_ff, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """The decoder layer; in EAGLE-3 ``input_layernorm`` is for the embedding, ``hidden_norm`` for the feature."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        if config.kind == "eagle3":
            self.input_layernorm = RmsNorm(config.n_embd, config.rms_eps)
            self.hidden_norm = RmsNorm(config.n_embd, config.rms_eps)
        self.post_attention_layernorm = RmsNorm(config.n_embd, config.rms_eps)


class Head(nn.Module):
    """An EAGLE head over a frozen token embedding.

    Args:
        config: the shape and switches; one layer, no biases but that of fc, no rope scaling.
        embedding: [V, H] the target's token embedding, frozen and not part of the state dict.
        target_output: [V, H] the target's output matrix, which EAGLE-1 drafts with, frozen likewise.

    Raises:
        ValueError: a switch that this trainer does not know.
    """

    embedding: Tensor
    target_output: Tensor
    frequencies: Tensor

    def __init__(self, config: HeadConfig, embedding: Tensor, target_output: Tensor | None = None) -> None:
        super().__init__()
        _check_trainable(config, embedding, target_output)
        self.config = config
        H, E, K = config.n_embd, config.n_embd_target, len(config.taps)
        if config.fc:
            self.fc = nn.Linear(2 * H if config.kind == "eagle1" else K * E, H, bias=config.fc_bias)
        if config.norm_before_fc:
            self.input_norm = RmsNorm(K * E, config.rms_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RmsNorm(E, config.rms_eps) for _ in range(K))
        self.midlayer = Layer(config)
        if config.kind == "eagle3":
            self.norm = RmsNorm(H, config.rms_eps)
            self.lm_head = nn.Linear(H, config.n_draft_vocab, bias=False)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        self.register_buffer("frequencies", (config.rope_theta**-exponents).float(), persistent=False)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("target_output", target_output, persistent=False)

    @property
    def output(self) -> Tensor:
        """[R, H] the matrix from the last of ``finish`` to logits: the head's own, or the target's in EAGLE-1."""
        return self.target_output if self.config.kind == "eagle1" else self.lm_head.weight

    def feature(self, taps: Tensor) -> Tensor:
        """[..., K*E] target states -> [..., H], the feature of the first step."""
        if not self.config.fc:
            return taps
        if not torch.is_autocast_enabled(taps.device.type):
            taps = taps.to(self.fc.weight.dtype)
        if self.config.kind == "eagle1":
            return taps  # fc reads it together with the embedding
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        if self.config.fc_norm:
            parts = taps.chunk(len(self.config.taps), dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        out: Tensor = self.fc(taps)
        return out

    def pair(self, tokens: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input [..., W] for (feature of position t, token at t+1), and the residual [..., H]."""
        if self.config.kind == "eagle1":
            mixed = self.fc(torch.cat([self.embedding[tokens].to(feature.dtype), feature], dim=-1))
            return mixed, mixed
        embedded = self.midlayer.input_layernorm(self.embedding[tokens].to(feature.dtype))
        normed = self.midlayer.hidden_norm(feature)
        residual = normed if self.config.norm_before_residual else feature
        return torch.cat([embedded, normed], dim=-1), residual

    def finish(self, residual: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """What follows the attention: the state that is fed back [..., H], and what ``output`` reads [..., H]."""
        hidden = residual + self.midlayer.self_attn.o_proj(attended)
        out = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
        if self.config.kind == "eagle1":
            return out, out  # it imitates the target's state after the final norm
        normed = self.norm(out)
        return (normed if self.config.norm_output else out), normed

    def angles(self, positions: Tensor) -> Tensor:
        """[...] positions -> [..., head_dim/2] rotary angles."""
        return positions[..., None] * self.frequencies


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of [B, heads, M, head_dim] in the half-split order of Hugging Face checkpoints."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = precise(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def precise(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is where it already holds more."""
    return x if x.dtype == torch.float64 else x.float()


def _attention_width(config: HeadConfig) -> int:
    return config.n_embd if config.kind == "eagle1" else 2 * config.n_embd


def _check_trainable(config: HeadConfig, embedding: Tensor, target_output: Tensor | None) -> None:
    flags = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "sliding_window", "rope_factors")
    unknown = [flag for flag in flags if getattr(config, flag)]
    if config.n_layer != 1 or config.rope_scaling is not None or unknown:
        detail = ", ".join(unknown) or f"{config.n_layer} layers, rope scaling {config.rope_scaling}"
        raise ValueError(f"only one-layer heads without biases or rope scaling are trained here, not: {detail}")
    wanted = (config.n_vocab, config.n_embd)
    if embedding.shape != wanted:
        raise ValueError(f"the token embedding has shape {tuple(embedding.shape)}, the head needs {wanted}")
    if config.kind != "eagle1":
        return
    if config.n_draft_vocab != config.n_vocab:
        raise ValueError(f"EAGLE-1 drafts from all {config.n_vocab} tokens, not from {config.n_draft_vocab}")
    if target_output is None or target_output.shape != wanted:
        raise ValueError(f"EAGLE-1 needs the target's output matrix, of shape {wanted}")
