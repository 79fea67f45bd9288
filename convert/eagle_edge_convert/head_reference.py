"""The forward pass of every EAGLE head in torch, on a checkpoint's own tensors: what a converted head must compute.

Written from the published mathematics (EAGLE-1 arXiv 2401.15077, EAGLE-3 arXiv 2503.01840, EAGLE-3.1 arXiv 2605.09992).
Tensors carry the names of a bare ``layers.N`` layout and rotary rows in Transformers' order: nothing here knows of
GGUF. A weight is asked for when it is used and not kept, so memory is bounded by the largest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eagle_edge.head_format import HeadConfig, RopeScaling

__all__ = ["HeadReference", "Maths"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Maths:
    """What a head computes beyond what its tensors say.

    Attributes:
        scaling: linear or YaRN rope scaling.
        llama3: its factor, low and high frequency factors, original context.
        window: positions a query sees, itself included; 0 = all.
    """

    n_head: int = 4
    n_head_kv: int = 2
    eps: float = 1e-5
    theta: float = 10000.0
    scaling: RopeScaling | None = None
    llama3: tuple[float, float, float, int] | None = None
    eagle1: bool = False
    normed_residual: bool = False
    normed_feedback: bool = False
    window: int = 0

    @classmethod
    def of(cls, config: HeadConfig, llama3: Mapping[str, Any] | None = None) -> Maths:
        """The mathematics of a head; ``llama3`` holds Transformers' parameters of that rope scaling."""
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return cls(
            n_head=config.n_head,
            n_head_kv=config.n_head_kv,
            eps=config.rms_eps,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            llama3=tuple(llama3[name] for name in names) if llama3 else None,
            eagle1=config.kind == "eagle1",
            normed_residual=config.norm_before_residual,
            normed_feedback=config.norm_output,
            window=config.sliding_window,
        )


class HeadReference:
    """A head that takes rows one block after another; a row sees the earlier rows that a mask names, and itself.

    Args:
        maths: what it computes.
        weights: name to tensor.
        embedding: ids [n] to rows [n, H].
        output: gives the output matrix [R, H].
        dtype: what it computes in.
    """

    def __init__(
        self,
        maths: Maths,
        weights: Mapping[str, Tensor],
        embedding: Callable[[Tensor], Tensor],
        output: Callable[[], Tensor],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.maths, self.weights, self.embedding, self.output, self.dtype = maths, weights, embedding, output, dtype
        self.n_layer = len({name.split(".")[1] for name in weights if name.startswith("layers.")})
        self.positions = torch.empty(0, dtype=torch.int64)
        self.keys: list[Tensor | None] = [None] * self.n_layer  # [rows, n_head_kv, head_dim] each
        self.values: list[Tensor | None] = [None] * self.n_layer

    def add(
        self, tokens: Tensor, positions: Tensor, visible: Tensor, *, taps: Tensor | None = None, states: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Append rows.

        Args:
            tokens: [n] ids.
            positions: [n] int64.
            visible: [n, rows before + n] bool: what each row attends to.
            taps: [n, K*E] for pairs of the text, or
            states: [n, H] what the parents fed back, for nodes of a tree.

        Returns:
            [n, R] logits and [n, H] the states that are fed back.
        """
        self.positions = torch.cat([self.positions, positions])
        if self.maths.window:
            visible = visible & (positions[:, None] - self.positions < self.maths.window)
        e = self.embedding(tokens).to(self.dtype)
        hidden = states.to(self.dtype) if taps is None else self._fused(taps.to(self.dtype))
        if self.maths.eagle1:
            hidden = self._linear("fc", torch.cat([e, hidden], dim=1))
        for layer in range(self.n_layer):
            hidden = self._layer(layer, hidden, e, positions, visible)
        z = hidden if self.maths.eagle1 else self._norm("norm", hidden)
        return z @ self.output().to(self.dtype).T, z if self.maths.normed_feedback else hidden

    def _fused(self, taps: Tensor) -> Tensor:
        if self.maths.eagle1 or "fc.weight" not in self.weights:
            return taps
        if "input_norm.weight" in self.weights:
            taps = self._norm("input_norm", taps)
        if "fc_norm.0.weight" in self.weights:
            parts = taps.chunk(sum(name.startswith("fc_norm.") for name in self.weights), dim=1)
            taps = torch.cat([self._norm(f"fc_norm.{k}", part) for k, part in enumerate(parts)], dim=1)
        return self._linear("fc", taps)

    def _layer(self, index: int, hidden: Tensor, e: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        name = f"layers.{index}"
        residual, x = hidden, hidden
        if index > 0:
            x = self._norm(f"{name}.input_layernorm", hidden)
        elif not self.maths.eagle1:
            u = self._norm(f"{name}.hidden_norm", hidden)
            x = torch.cat([self._norm(f"{name}.input_layernorm", e), u], dim=1)
            residual = u if self.maths.normed_residual else hidden
        h = residual + self._linear(f"{name}.self_attn.o_proj", self._attention(index, x, positions, visible))
        y = self._norm(f"{name}.post_attention_layernorm", h)
        gate, up = (self._linear(f"{name}.mlp.{part}_proj", y) for part in ("gate", "up"))
        return h + self._linear(f"{name}.mlp.down_proj", torch.nn.functional.silu(gate) * up)

    def _attention(self, index: int, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        name, maths = f"layers.{index}.self_attn", self.maths
        q = self._turned(f"{name}.q", x, maths.n_head, positions)
        k = self._turned(f"{name}.k", x, maths.n_head_kv, positions)
        v = self._linear(f"{name}.v_proj", x).reshape(len(x), maths.n_head_kv, -1)
        earlier_k, earlier_v = self.keys[index], self.values[index]
        k = self.keys[index] = k if earlier_k is None else torch.cat([earlier_k, k])
        v = self.values[index] = v if earlier_v is None else torch.cat([earlier_v, v])
        group = maths.n_head // maths.n_head_kv
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("nhd,mhd->nhm", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~visible[:, None], -math.inf).softmax(dim=-1)
        return torch.einsum("nhm,mhd->nhd", weights, v).flatten(1)

    def _turned(self, name: str, x: Tensor, n_head: int, positions: Tensor) -> Tensor:
        """[n, heads, head_dim] of q or k, turned by their positions: rotate-half, as Transformers does."""
        rows = self._linear(f"{name}_proj", x).reshape(len(x), n_head, -1)
        if f"{name}_norm.weight" in self.weights:
            rows = self._norm(f"{name}_norm", rows)
        inverse, magnitude = self._frequencies(rows.shape[-1])
        angle = (positions[:, None] * inverse).repeat(1, 2)[:, None]
        first, second = rows.chunk(2, dim=-1)
        turned: Tensor = (rows * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()) * magnitude
        return turned.to(self.dtype)

    def _frequencies(self, D: int) -> tuple[Tensor, float]:
        """[D/2] angle per position, and what sine and cosine are multiplied by."""
        theta, scaling = self.maths.theta, self.maths.scaling
        inverse = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
        if self.maths.llama3 is not None:
            factor, low, high, n_ctx = self.maths.llama3
            turns = n_ctx * inverse / (2 * math.pi)
            smooth = ((turns - low) / (high - low)).clamp(0, 1)
            return (1 - smooth) * inverse / factor + smooth * inverse, 1.0
        if scaling is None:
            return inverse, 1.0
        if scaling.kind == "linear":
            return inverse / scaling.factor, 1.0
        n_ctx = scaling.original_n_ctx

        def dimension(n_turns: float) -> float:
            return D * math.log(n_ctx / (n_turns * 2 * math.pi)) / (2 * math.log(theta))

        start = max(math.floor(dimension(scaling.beta_fast)), 0)
        end = min(math.ceil(dimension(scaling.beta_slow)), D - 1)
        ramp = ((torch.arange(D // 2) - start) / max(end - start, 0.001)).clamp(0, 1)
        magnitude = (0.1 * math.log(scaling.factor) + 1) * scaling.attention_factor
        return inverse / scaling.factor * ramp + inverse * (1 - ramp), magnitude

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].to(self.dtype).T
        return y + self.weights[f"{name}.bias"].to(self.dtype) if f"{name}.bias" in self.weights else y

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.maths.eps).rsqrt()
        return x * scale * self.weights[f"{name}.weight"].to(self.dtype)
