"""A draft head's checkpoint to GGUF: read, rename by a table, reorder, write; nothing is left over or made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import FileFormatError
from eagle_edge.head_format import HeadConfig, rope_row_order

from .layouts import HeadOverrides, describe_eagle3, rope_factors
from .names import EAGLE3_NAMES, ROTATED
from .read import Checkpoint, Tensor, open_checkpoint
from .target import read_target
from .write import write_gguf

__all__ = ["ConvertedHead", "HeadOverrides", "convert_head"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ConvertedHead:
    """What was written: the file, the head, its bytes, what was guessed and what was left out on purpose."""

    path: Path
    config: HeadConfig
    n_bytes: int
    notes: tuple[str, ...]
    dropped: tuple[str, ...]


def convert_head(
    checkpoint: str | Path,
    target: str | Path,
    output: str | Path,
    quantize: str = "f16",
    overrides: HeadOverrides | None = None,
    metadata: dict[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertedHead:
    """Convert the head in the folder ``checkpoint`` for the model ``target`` to the GGUF file ``output``.

    Args:
        checkpoint: a folder in the SafeAILab or SpecForge EAGLE-3 layout.
        target: the GGUF the head drafts for; tokenizer, widths and vocabulary come from it.
        output: the file to write; it appears complete or not at all.
        quantize: how matrices are stored: f32, f16, bf16, q8_0 or q4_0. Norms stay f32.
        overrides: what the user knows better than the checkpoint.
        metadata: more ``general.*`` strings, for example licence.
        progress: called with bytes written and bytes in all.

    Raises:
        FileFormatError: a file is broken, of another layout, or a tensor is missing or left over.
        PairError: the head does not fit the target.
        ValueError: an unknown ``quantize``.
    """
    facts = read_target(Path(target))
    source = open_checkpoint(Path(checkpoint))
    config, notes = describe_eagle3(source, facts, overrides or HeadOverrides())
    tensors, dropped = _rename(source, config)
    loaders = {name: _loader(source, name, tensor, config) for name, tensor in tensors.items()}
    if config.rope_factors:
        loaders["rope_freqs.weight"] = lambda: rope_factors(source, config)
    _check_complete(source, config, loaders)
    general = {
        "general.name": f"EAGLE-3 head for {facts.name}",
        "general.base_model.0.name": facts.name,
        **(metadata or {}),
    }
    n_bytes = write_gguf(Path(output), config, loaders, facts.path, quantize, general, progress)
    return ConvertedHead(Path(output), config, n_bytes, tuple(notes), tuple(dropped))


def _rename(source: Checkpoint, config: HeadConfig) -> tuple[dict[str, Tensor], list[str]]:
    """GGUF name to source tensor, and the names that are left out on purpose."""
    unknown = sorted(set(source.tensors) - set(EAGLE3_NAMES))
    if unknown:
        raise FileFormatError(f"{source.folder}: tensors this layout does not know: {', '.join(unknown[:8])}")
    out: dict[str, Tensor] = {}
    dropped = []
    for name, tensor in source.tensors.items():
        renamed = EAGLE3_NAMES[name]
        if renamed == "token_embd.weight" and config.n_embd == config.n_embd_target:
            renamed = None  # a frozen copy of the target's, which the runtime borrows
        if renamed == "d2t" and config.n_draft_vocab == config.n_vocab:
            renamed = None  # a full vocabulary needs no map
        if renamed is None:
            dropped.append(name)
        else:
            out[renamed] = tensor
    return out, dropped


def _check_complete(source: Checkpoint, config: HeadConfig, loaders: dict[str, Callable[[], Array]]) -> None:
    expected = set(config.tensors())
    optional = {"output.weight", "token_embd.weight"}
    missing, extra = expected - set(loaders), set(loaders) - expected - optional
    if missing:
        raise FileFormatError(f"{source.folder}: tensors are missing for {', '.join(sorted(missing))}")
    if extra:
        raise FileFormatError(f"{source.folder}: its configuration has no use for {', '.join(sorted(extra))}")


def _loader(source: Checkpoint, name: str, tensor: Tensor, config: HeadConfig) -> Callable[[], Array]:
    H = config.n_embd
    shapes = {**config.tensors(), "output.weight": (H, config.n_draft_vocab), "token_embd.weight": (H, config.n_vocab)}
    if name in shapes and tensor.shape != shapes[name][::-1]:
        wanted = list(shapes[name][::-1])
        raise FileFormatError(f"{source.folder}: {name} has shape {list(tensor.shape)}, the head needs {wanted}")

    def load() -> Array:
        values = tensor.read()
        if name == "d2t":
            return _absolute(source, values, config)
        if not np.isfinite(values).all():
            raise FileFormatError(f"{source.folder}: {name} holds NaN or infinite values; the head is broken")
        if name.endswith(ROTATED):
            rows = values.reshape(-1, config.head_dim, values.shape[-1])
            return rows[:, rope_row_order(config.head_dim)].reshape(values.shape)
        return values

    return load


def _absolute(source: Checkpoint, offsets: Array, config: HeadConfig) -> Array:
    """[R] int64 target ids: trainers store ``target id - draft id``."""
    ids: Array = offsets.astype(np.int64) + np.arange(len(offsets))
    if ids.min() < 0 or ids.max() >= config.n_vocab:
        raise FileFormatError(
            f"{source.folder}: d2t reaches from {ids.min()} to {ids.max()}, the target has {config.n_vocab} tokens; "
            "it should hold offsets (target id minus draft id)"
        )
    if len(np.unique(ids)) != len(ids):
        raise FileFormatError(f"{source.folder}: d2t maps two draft tokens to one target token")
    if "t2d" in source.tensors:
        inside = np.flatnonzero(source.tensors["t2d"].read())
        if not np.array_equal(inside, np.sort(ids)):
            raise FileFormatError(f"{source.folder}: d2t and t2d name different tokens")
    return ids
