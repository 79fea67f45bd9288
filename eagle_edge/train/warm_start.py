"""A head to go on from: its shape, draft vocabulary and weights, from a GGUF or from a checkpoint in any known layout.

The run keeps the head as a GGUF of its own, so that it can be continued when the original has gone.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import torch
from eagle_edge_convert import convert_head
from eagle_edge_convert.names import ROTATED, checkpoint_names
from torch import Tensor

from ..errors import PairError
from ..gguf_header import GgufHeader, read_header
from ..head_format import HeadConfig, rope_row_order
from ..pair import check_pair, read_draft_vocab

__all__ = ["WarmStart", "read_start"]


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A head as training takes it up.

    Attributes:
        config: its shape and switches.
        ids: [R] int64 target id of each draft id.
        weights: every parameter, float32, under the names of ``Head``.
    """

    config: HeadConfig
    ids: np.ndarray
    weights: dict[str, Tensor]

    def narrowed(self, counts: np.ndarray, size: int) -> WarmStart:
        """The same head with only the ``size`` of its tokens that are said most often; with all where it has no more.

        Args:
            counts: [V] how often each token is said.
            size: R of the narrower head, at least 1.
        """
        if size >= len(self.ids):
            return self
        kept = np.sort(np.argsort(-counts[self.ids], kind="stable")[:size])
        weights = {**self.weights, "lm_head.weight": self.weights["lm_head.weight"][torch.from_numpy(kept)]}
        return WarmStart(replace(self.config, n_draft_vocab=size), self.ids[kept], weights)


def read_start(source: Path, target: Path, folder: Path) -> WarmStart:
    """The head ``source``, a GGUF or a checkpoint's folder, of which ``folder`` keeps a copy as start.gguf.

    Raises:
        FileFormatError: not a head, or a broken one.
        PairError: it does not fit the target, or carries a token embedding of its own.
    """
    kept = folder / "start.gguf"
    lender = read_header(target)
    if not kept.exists():
        partial = folder / "start.partial.gguf"
        if source.is_dir():
            convert_head(source, target, partial, "f32", check=False)
        else:
            check_pair(read_header(source), lender)
            shutil.copyfile(source, partial)
        if "token_embd.weight" in read_header(partial).tensors:
            partial.unlink()
            raise PairError(f"{source}: has a token embedding of its own; heads trained here use their target's")
        partial.replace(kept)
    header = read_header(kept)
    check_pair(header, lender)
    config = HeadConfig.from_metadata(header)
    names, tensors = checkpoint_names(config, "specforge"), _tensors(kept)
    weights = {}
    for name in header.tensors:
        if name not in ("d2t", "rope_freqs.weight"):
            checkpoint_name = names[name].replace("layers.0.", "midlayer.")
            weights[checkpoint_name] = _rows(_dequantised(tensors[name]), name, config)
    ids = np.array(read_draft_vocab(config, header), np.int64)
    if config.kind == "eagle3" and "output.weight" not in header.tensors:
        weights["lm_head.weight"] = _borrowed(target, lender)[torch.from_numpy(ids)]
    return WarmStart(config, ids, weights)


def _tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}


def _dequantised(tensor: gguf.ReaderTensor) -> Tensor:
    return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))


def _borrowed(target: Path, header: GgufHeader) -> Tensor:
    """[V, H] the output matrix of the target."""
    name = "output.weight" if "output.weight" in header.tensors else "token_embd.weight"
    return _dequantised(_tensors(target)[name])


def _rows(values: Tensor, name: str, config: HeadConfig) -> Tensor:
    """``values`` with the rows of queries and keys back in the order of checkpoints."""
    if not name.endswith(ROTATED):
        return values
    order = np.argsort(rope_row_order(config.head_dim))
    starts = np.arange(0, len(values), config.head_dim)[:, None]
    return values[torch.from_numpy((starts + order).ravel())]
