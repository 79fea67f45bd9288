"""Settings as frozen dataclasses, checked once when they are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from .threads import physical_cores

__all__ = ["KV_TYPES", "DraftParams", "TargetParams"]

# ggml_type numbers of the cache types llama.cpp can attend over on every backend.
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


@dataclass(frozen=True, slots=True)
class TargetParams:
    """How a target is loaded.

    Attributes:
        n_ctx: positions of text; 0 takes the model's own context.
        n_batch: most tokens of one prefill call, 1..4096.
        n_threads: CPU threads.
        n_gpu_layers: layers on the GPU; 0 none, -1 all.
        type_k, type_v: types of the K and V caches, a key of ``KV_TYPES``.
        flash_attn: "auto", "on" or "off".
        max_nodes: most nodes of one tree, root included, 1..254.
        repack: let llama.cpp re-lay weights for its faster kernels.
        pair_single_row: evaluate a lone row as two, so that it takes the kernels that a tree takes.

    Raises:
        ValueError: a value is out of its range.
    """

    n_ctx: int = 4096
    n_batch: int = 512
    n_threads: int = field(default_factory=physical_cores)
    n_gpu_layers: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    max_nodes: int = 64
    repack: bool = True
    pair_single_row: bool = False

    def __post_init__(self) -> None:
        _within("n_ctx", self.n_ctx, 0, 1 << 24)
        _within("n_batch", self.n_batch, 1, 4096)
        _within("n_threads", self.n_threads, 1, 512)
        _within("n_gpu_layers", self.n_gpu_layers, -1, 10_000)
        _within("max_nodes", self.max_nodes, 1, 254)
        _one_of("type_k", self.type_k, KV_TYPES)
        _one_of("type_v", self.type_v, KV_TYPES)
        _one_of("flash_attn", self.flash_attn, ("auto", "on", "off"))


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value}")


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in (names := tuple(allowed)):
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How a tree is drafted: EAGLE-2's dynamic tree (arXiv 2406.16858), in the terms of its published settings.

    Attributes:
        total: nodes to verify, the root included; 1 is plain decoding.
        depth: draft evaluations of a round after the first, so the deepest node lies ``depth + 1`` below the root.
        top_k: children drawn from a node, and nodes evaluated at each level; 1 is a chain.

    Raises:
        ValueError: a size is out of its range, or ``depth`` and ``top_k`` cannot give ``total`` nodes.
    """

    total: int = 60
    depth: int = 7
    top_k: int = 10

    def __post_init__(self) -> None:
        _within("total", self.total, 1, 254)
        _within("depth", self.depth, 0, 253)
        _within("top_k", self.top_k, 1, 253)
        most = 1 + self.top_k + self.depth * self.top_k**2
        if self.total > most:
            raise ValueError(f"depth {self.depth} and top_k {self.top_k} give at most {most} nodes, not {self.total}")

    @classmethod
    def chain(cls, n: int) -> DraftParams:
        """A chain of ``n`` drafted tokens; 0 is plain decoding."""
        return cls(total=n + 1, depth=max(n - 1, 0), top_k=1)
