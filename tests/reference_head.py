"""The forward pass of every EAGLE head in plain NumPy, one row at a time: the oracle for the native graph.

Written from the papers and the heads' public training code (EAGLE-3: arXiv 2503.01840, EAGLE-1: arXiv 2401.15077), in
float64, with the rotate-half rotary embedding of the checkpoints, so that the GGUF row order is tested too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.head_format import HeadConfig, rope_row_order

Float64 = npt.NDArray[np.float64]


def rms_norm(x: Float64, weight: Float64, eps: float) -> Float64:
    out: Float64 = x / np.sqrt(np.mean(x * x) + eps) * weight
    return out


def inverse_frequencies(config: HeadConfig, factors: Float64 | None) -> tuple[Float64, float]:
    """[head_dim/2] angle per position, and the factor on sine and cosine, as Transformers computes them."""
    half = config.head_dim // 2
    base = config.rope_theta ** -(np.arange(half) / half)
    if factors is not None:
        base = base / factors
    scaling = config.rope_scaling
    if scaling is None:
        return base, 1.0
    if scaling.kind == "linear":
        return base / scaling.factor, scaling.attention_factor

    def dimension(n_rotations: float) -> float:
        length = scaling.original_n_ctx / (n_rotations * 2 * np.pi)
        return float(config.head_dim * np.log(length) / (2 * np.log(config.rope_theta)))

    low = max(np.floor(dimension(scaling.beta_fast)), 0)
    high = min(np.ceil(dimension(scaling.beta_slow)), config.head_dim - 1)
    ramp = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0, 1)
    return base / scaling.factor * ramp + base * (1 - ramp), (
        0.1 * np.log(scaling.factor) + 1
    ) * scaling.attention_factor


class ReferenceHead:
    """Rows are added one by one; each sees the rows named in ``visible`` and itself."""

    def __init__(
        self, config: HeadConfig, tensors: Mapping[str, npt.NDArray[Any]], embedding: Any, output: Any
    ) -> None:
        self.c = config
        self.t = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self.embedding, self.output = np.asarray(embedding, np.float64), np.asarray(output, np.float64)
        self.keys: list[list[Float64]] = [[] for _ in range(config.n_layer)]
        self.values: list[list[Float64]] = [[] for _ in range(config.n_layer)]
        self.positions: list[int] = []
        self.inverse, self.magnitude = inverse_frequencies(config, self.t.get("rope_freqs.weight"))

    def add(
        self, token: int, position: int, visible: Sequence[int], *, taps: Any = None, state: Any = None
    ) -> tuple[Float64, Float64]:
        """The logits [R] and the state [H] of a new row; ``taps`` for a pair, ``state`` under a node."""
        c, t = self.c, self.t
        self.positions.append(position)
        e = self.embedding[token]
        g = np.asarray(state, np.float64) if taps is None else self.feature(np.asarray(taps, np.float64))
        hidden = self.linear("fc", np.concatenate([e, g])) if c.kind == "eagle1" else g
        for layer in range(c.n_layer):
            hidden = self.layer(layer, hidden, e, position, visible)
        if c.kind == "eagle1":
            return self.output @ hidden, hidden
        z = rms_norm(hidden, t["output_norm.weight"], c.rms_eps)
        return self.output @ z, z if c.norm_output else hidden

    def feature(self, taps: Float64) -> Float64:
        c, t = self.c, self.t
        if c.kind == "eagle1" or not c.fc:
            return taps
        if c.norm_before_fc:
            taps = rms_norm(taps, t["enc.output_norm.weight"], c.rms_eps)
        if c.fc_norm:
            parts = np.split(taps, len(c.taps))
            taps = np.concatenate([rms_norm(p, t[f"fc_norm.{k}.weight"], c.rms_eps) for k, p in enumerate(parts)])
        return self.linear("fc", taps)

    def linear(self, name: str, x: Float64) -> Float64:
        out: Float64 = self.t[f"{name}.weight"] @ x + self.t.get(f"{name}.bias", 0.0)
        return out

    def layer(self, index: int, hidden: Float64, e: Float64, position: int, visible: Sequence[int]) -> Float64:
        c, t, block = self.c, self.t, f"blk.{index}"
        residual = x = hidden
        if c.kind == "eagle3" and index == 0:
            u = rms_norm(hidden, t[f"{block}.attn_norm_2.weight"], c.rms_eps)
            x = np.concatenate([rms_norm(e, t[f"{block}.attn_norm.weight"], c.rms_eps), u])
            residual = u if c.norm_before_residual else hidden
        elif index > 0:
            x = rms_norm(hidden, t[f"{block}.attn_norm.weight"], c.rms_eps)
        h = residual + self.linear(f"{block}.attn_output", self.attention(index, x, position, visible))
        y = rms_norm(h, t[f"{block}.ffn_norm.weight"], c.rms_eps)
        gate, up = self.linear(f"{block}.ffn_gate", y), self.linear(f"{block}.ffn_up", y)
        return h + self.linear(f"{block}.ffn_down", gate / (1 + np.exp(-gate)) * up)

    def rotated(self, name: str, x: Float64, position: int) -> Float64:
        """[heads, head_dim] of q or k in the checkpoint's row order."""
        c = self.c
        rows = self.linear(name, x).reshape(-1, c.head_dim)
        order = np.argsort(rope_row_order(c.head_dim))
        rows = rows[:, order]
        if c.qk_norm:
            weight = self.t[f"{name}_norm.weight"][order]
            rows = np.stack([rms_norm(row, weight, c.rms_eps) for row in rows])
        angle = np.concatenate([position * self.inverse] * 2)
        first, second = np.split(rows, 2, axis=-1)
        turned = np.concatenate([-second, first], axis=-1)
        out: Float64 = (rows * np.cos(angle) + turned * np.sin(angle)) * self.magnitude
        return out

    def attention(self, index: int, x: Float64, position: int, visible: Sequence[int]) -> Float64:
        c, block = self.c, f"blk.{index}"
        q = self.rotated(f"{block}.attn_q", x, position)
        self.keys[index].append(self.rotated(f"{block}.attn_k", x, position))
        self.values[index].append(self.linear(f"{block}.attn_v", x).reshape(-1, c.head_dim))
        seen = [*visible, len(self.keys[index]) - 1]
        if c.sliding_window:
            seen = [row for row in seen if position - self.positions[row] < c.sliding_window]
        group = c.n_head // c.n_head_kv
        keys = np.repeat(np.stack([self.keys[index][row] for row in seen]), group, axis=1)  # [rows, heads, head_dim]
        values = np.repeat(np.stack([self.values[index][row] for row in seen]), group, axis=1)
        scores = np.einsum("hd,rhd->hr", q, keys) / np.sqrt(c.head_dim)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out: Float64 = np.einsum("hr,rhd->hd", weights, values).ravel()
        return out
