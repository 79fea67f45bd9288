"""The forward pass of EAGLE heads in torch, on a checkpoint's own tensors: the oracle for the whole conversion.

Written from the published mathematics (EAGLE-1 arXiv 2401.15077, EAGLE-3 arXiv 2503.01840, EAGLE-3.1 arXiv 2605.09992)
in float64. Tensors carry the names of a bare ``layers.N`` layout and rotary rows in Transformers' order, so that
renaming and reordering are tested too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Maths:
    """What a layout computes, said without our own configuration class."""

    n_head: int = 4
    n_head_kv: int = 2
    eps: float = 1e-5
    theta: float = 10000.0
    yarn: tuple[float, int] | None = None  # factor, original context
    llama3: tuple[float, float, float, int] | None = None  # factor, low, high, original context
    eagle1: bool = False
    normed_residual: bool = False
    normed_feedback: bool = False
    window: int = 0


class CheckpointHead:
    """Rows are added one by one; each sees the rows named in ``visible`` and itself."""

    def __init__(self, maths: Maths, tensors: Mapping[str, Tensor], embedding: Any, output: Any) -> None:
        self.maths = maths
        self.w = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.embedding, self.output = torch.as_tensor(embedding).double(), torch.as_tensor(output).double()
        self.head_dim = self.w["layers.0.self_attn.q_proj.weight"].shape[0] // maths.n_head
        self.n_layer = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
        self.cache: list[list[tuple[Tensor, Tensor, int]]] = [[] for _ in range(self.n_layer)]

    def add(
        self, token: int, position: int, visible: Sequence[int], *, taps: Any = None, state: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The logits [R] and the state [H] that is fed back, of a new row."""
        e = self.embedding[token]
        g = torch.as_tensor(state).double() if taps is None else self.fused(torch.as_tensor(taps).double())
        hidden = self.linear("fc", torch.cat([e, g])) if self.maths.eagle1 else g
        for layer in range(self.n_layer):
            hidden = self.layer(layer, hidden, e, position, visible)
        if self.maths.eagle1:
            return self.output @ hidden, hidden
        z = self.norm("norm", hidden)
        return self.output @ z, z if self.maths.normed_feedback else hidden

    def fused(self, taps: Tensor) -> Tensor:
        if self.maths.eagle1 or "fc.weight" not in self.w:
            return taps
        if "input_norm.weight" in self.w:
            taps = self.norm("input_norm", taps)
        if "fc_norm.0.weight" in self.w:
            width = self.w["fc_norm.0.weight"].shape[0]
            taps = torch.cat([self.norm(f"fc_norm.{k}", tap) for k, tap in enumerate(torch.split(taps, width))])
        return self.linear("fc", taps)

    def layer(self, index: int, hidden: Tensor, e: Tensor, position: int, visible: Sequence[int]) -> Tensor:
        name = f"layers.{index}"
        residual, x = hidden, hidden
        if index > 0:
            x = self.norm(f"{name}.input_layernorm", hidden)
        elif not self.maths.eagle1:
            u = self.norm(f"{name}.hidden_norm", hidden)
            x = torch.cat([self.norm(f"{name}.input_layernorm", e), u])
            residual = u if self.maths.normed_residual else hidden
        h = residual + self.linear(f"{name}.self_attn.o_proj", self.attention(index, x, position, visible))
        y = self.norm(f"{name}.post_attention_layernorm", h)
        inner = torch.nn.functional.silu(self.linear(f"{name}.mlp.gate_proj", y)) * self.linear(
            f"{name}.mlp.up_proj", y
        )
        return h + self.linear(f"{name}.mlp.down_proj", inner)

    def attention(self, index: int, x: Tensor, position: int, visible: Sequence[int]) -> Tensor:
        name = f"layers.{index}.self_attn"
        q, k = (self.turned(f"{name}.{part}", x, position) for part in "qk")
        v = self.linear(f"{name}.v_proj", x).view(-1, self.head_dim)
        rows = self.cache[index]
        rows.append((k, v, position))
        seen = [rows[row] for row in (*visible, len(rows) - 1)]
        if self.maths.window:
            seen = [row for row in seen if position - row[2] < self.maths.window]
        groups = self.maths.n_head // self.maths.n_head_kv
        keys = torch.stack([row[0] for row in seen]).repeat_interleave(groups, dim=1)  # [rows, heads, head_dim]
        values = torch.stack([row[1] for row in seen]).repeat_interleave(groups, dim=1)
        weights = (torch.einsum("hd,rhd->hr", q, keys) / math.sqrt(self.head_dim)).softmax(dim=1)
        return torch.einsum("hr,rhd->hd", weights, values).flatten()

    def turned(self, name: str, x: Tensor, position: int) -> Tensor:
        """[heads, head_dim] of q or k, turned by its position: rotate-half, as Transformers does."""
        rows = self.linear(f"{name}_proj", x).view(-1, self.head_dim)
        if f"{name}_norm.weight" in self.w:
            rows = self.norm(f"{name}_norm", rows)
        inverse, magnitude = self.frequencies()
        angle = (position * inverse).repeat(2)
        first, second = rows.chunk(2, dim=-1)
        return (rows * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()) * magnitude

    def frequencies(self) -> tuple[Tensor, float]:
        """[head_dim/2] angle per position, and what sine and cosine are multiplied by."""
        D, m = self.head_dim, self.maths
        inverse = m.theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
        if m.llama3 is not None:
            factor, low, high, n_ctx = m.llama3
            turns = n_ctx * inverse / (2 * math.pi)
            smooth = ((turns - low) / (high - low)).clamp(0, 1)
            return (1 - smooth) * inverse / factor + smooth * inverse, 1.0
        if m.yarn is None:
            return inverse, 1.0
        factor, n_ctx = m.yarn

        def dimension(n_turns: float) -> float:
            return D * math.log(n_ctx / (n_turns * 2 * math.pi)) / (2 * math.log(m.theta))

        low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), D - 1)
        ramp = ((torch.arange(D // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        return inverse / factor * ramp + inverse * (1 - ramp), 0.1 * math.log(factor) + 1

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.w[f"{name}.weight"] @ x
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.maths.eps).sqrt() * self.w[f"{name}.weight"]
