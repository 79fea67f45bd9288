"""The matrices of a target that a head borrows or starts from, dequantised from its GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from ..errors import PairError
from ..gguf_header import GgufHeader, read_header

__all__ = ["TargetWeights", "read_target_weights"]


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """Sizes and weights of a target.

    Attributes:
        n_embd, n_layer, n_ff, n_head, n_head_kv, head_dim, n_vocab: sizes; n_ff is that of the last layer.
        rms_eps, rope_theta: of its layers.
        embedding: [V, E] bfloat16.
        output: [V, E] bfloat16; the embedding again where the target ties them.
        output_norm: [E] float32.
        last_mlp: gate [I, E], up [I, E], down [E, I] and norm [E] of the last layer's MLP, float32; None where it
            is not of that shape.
    """

    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    rms_eps: float
    rope_theta: float
    embedding: Tensor
    output: Tensor
    output_norm: Tensor
    last_mlp: tuple[Tensor, Tensor, Tensor, Tensor] | None


def read_target_weights(path: Path) -> TargetWeights:
    """Read what is needed of the target in ``path``.

    Raises:
        FileFormatError: not a GGUF model.
        PairError: the model lacks what a head needs (token embedding, final norm, attention sizes).
    """
    header = read_header(path)
    arch = header.architecture
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in tensors:
            raise PairError(f"{path}: has no {name}, so no head can be trained for it")
    n_embd, n_layer = header.get(f"{arch}.embedding_length", int), header.get(f"{arch}.block_count", int)
    n_head = _size(header, f"{arch}.attention.head_count")
    if n_head < 1:
        raise PairError(f"{path}: {arch} has no attention heads, so no head can be trained for it")
    embedding = _tensor(tensors, "token_embd.weight").bfloat16()
    output = _tensor(tensors, "output.weight").bfloat16() if "output.weight" in tensors else embedding
    mlp = _last_mlp(tensors, n_layer - 1, n_embd)
    return TargetWeights(
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=mlp[0].shape[0] if mlp else _size(header, f"{arch}.feed_forward_length"),
        n_head=n_head,
        n_head_kv=_size(header, f"{arch}.attention.head_count_kv", n_head),
        head_dim=header.get(f"{arch}.attention.key_length", int, n_embd // n_head),
        n_vocab=embedding.shape[0],
        rms_eps=header.get(f"{arch}.attention.layer_norm_rms_epsilon", float, 1e-5),
        rope_theta=header.get(f"{arch}.rope.freq_base", float, 10000.0),
        embedding=embedding,
        output=output,
        output_norm=_tensor(tensors, "output_norm.weight"),
        last_mlp=mlp,
    )


def _size(header: GgufHeader, key: str, default: int | None = None) -> int:
    """An integer, or the last of a list with one for each layer."""
    value = header.metadata.get(key)
    if value is not None and not isinstance(value, (int, float, str)):
        return int(header.integers(key)[-1])
    return header.get(key, int, default)


def _tensor(tensors: Mapping[str, Any], name: str) -> Tensor:
    tensor = tensors[name]
    return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))


def _last_mlp(tensors: Mapping[str, Any], layer: int, n_embd: int) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    names = [f"blk.{layer}.ffn_{part}.weight" for part in ("gate", "up", "down", "norm")]
    if any(name not in tensors for name in names):
        return None
    gate, up, down, norm = (_tensor(tensors, name) for name in names)
    plain = gate.ndim == 2 and gate.shape == up.shape == down.T.shape and gate.shape[1] == n_embd == len(norm)
    return (gate, up, down, norm) if plain else None
