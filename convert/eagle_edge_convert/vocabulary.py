"""The reduced vocabulary of a head, and which of its large matrices are its own rather than the target's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.errors import PairError

from .config_values import ConfigValues
from .read import Tensor
from .target import TargetFacts

__all__ = ["keeps_embedding", "read_draft_ids"]

Int64 = npt.NDArray[np.int64]

MAX_PADDING = 1024  # rows that a trainer adds to round a vocabulary up
N_SAMPLED = 256  # rows of the embedding that are compared with the target's


def read_draft_ids(
    config: ConfigValues, tensors: Mapping[str, Tensor], target: TargetFacts, notes: list[str]
) -> Int64 | None:
    """[R] the target id of each draft id, in the head's own order; None for the whole vocabulary.

    Trainers store ``target id - draft id`` (d2t) and which target ids are in (t2d), either may be absent, and a full
    vocabulary needs neither, whatever they hold.

    Raises:
        FileFormatError: the maps contradict each other or point outside the vocabulary.
        PairError: the head was made for another vocabulary.
    """
    V, R = target.n_vocab, _n_draft_vocab(config, tensors, target)
    known = _known_vocabulary(config, tensors)
    if known is not None and abs(known - V) > MAX_PADDING:
        raise PairError(f"{config.checkpoint.folder}: the head knows {known} tokens, the target {V}: another target")
    if known is not None and known != V:
        notes.append(f"the head knows {known} tokens, the target {V}: taken for padding")
    if R in (V, known) and R >= V:
        return None  # rows beyond the target's tokens are left out
    if known == R:
        return np.arange(R, dtype=np.int64)
    if "d2t" in tensors:
        return _from_offsets(config, tensors, R, V)
    if "t2d" in tensors:
        notes.append("no d2t is stored: the draft ids follow t2d in ascending order")
        return _from_mask(config, tensors["t2d"], R, V)
    if not 0 <= V - R <= MAX_PADDING:
        config.fail(f"the head drafts {R} of {V} tokens, but neither d2t nor t2d says which")
    notes.append(f"neither d2t nor t2d is stored: the head drafts the first {R} tokens")
    return np.arange(R, dtype=np.int64)


def _n_draft_vocab(config: ConfigValues, tensors: Mapping[str, Tensor], target: TargetFacts) -> int:
    if "fc.weight" in tensors and "layers.0.hidden_norm.weight" not in tensors:
        return target.n_vocab  # EAGLE-1 drafts with the target's output matrix
    for name in ("lm_head.weight", "d2t"):
        if name in tensors:
            if not tensors[name].shape or tensors[name].shape[0] < 1:
                config.fail(f"the tensor {name} has shape {list(tensors[name].shape)}")
            return tensors[name].shape[0]
    R = config.integer("draft_vocab_size", target.n_vocab)
    if not 0 < R <= target.n_vocab + MAX_PADDING:
        config.fail(f"config.json: draft_vocab_size is {R}, the target has {target.n_vocab} tokens")
    return min(R, target.n_vocab)


def _known_vocabulary(config: ConfigValues, tensors: Mapping[str, Tensor]) -> int | None:
    """How many target tokens the head was made for."""
    for name in ("t2d", "embed_tokens.weight"):
        if name in tensors and tensors[name].shape:
            return tensors[name].shape[0]
    return config.integer("vocab_size") if config.values.get("vocab_size") is not None else None


def _from_offsets(config: ConfigValues, tensors: Mapping[str, Tensor], R: int, V: int) -> Int64:
    d2t = tensors["d2t"]
    if d2t.shape != (R,) or d2t.is_float:
        config.fail(f"d2t has shape {list(d2t.shape)} and type {d2t.dtype}, expected [{R}] whole numbers")
    ids: Int64 = d2t.read().astype(np.int64) + np.arange(R)
    if ids.min() < 0 or ids.max() >= V:
        config.fail(
            f"d2t reaches from {ids.min()} to {ids.max()}, the target has {V} tokens; "
            "it should hold offsets (target id minus draft id)"
        )
    if len(np.unique(ids)) != R:
        config.fail("d2t maps two draft tokens to one target token")
    if "t2d" in tensors:
        inside = np.flatnonzero(tensors["t2d"].read())
        if not np.array_equal(inside, np.sort(ids)):
            config.fail("d2t and t2d name different tokens")
    return ids


def _from_mask(config: ConfigValues, t2d: Tensor, R: int, V: int) -> Int64:
    ids = np.flatnonzero(t2d.read()).astype(np.int64)
    if len(ids) != R or ids.max(initial=0) >= V:
        config.fail(f"t2d names {len(ids)} tokens, the head drafts {R}")
    return ids


def keeps_embedding(
    config: ConfigValues, tensors: Mapping[str, Tensor], target: TargetFacts, override: bool | None, notes: list[str]
) -> bool:
    """Whether the file needs the head's own token embedding: most heads carry a frozen copy of the target's.

    Raises:
        PairError: the head needs one of its own and has none.
    """
    own = tensors.get("embed_tokens.weight")
    H = tensors["layers.0.self_attn.o_proj.weight"].shape[0]
    if own is None:
        if target.n_embd != H or override:
            raise PairError(
                f"{config.checkpoint.folder}: has no embed_tokens.weight, and at {H} wide it cannot borrow the "
                f"target's, which is {target.n_embd} wide"
            )
        return False
    if len(own.shape) != 2 or own.shape[1] != H or not own.is_float:
        config.fail(f"embed_tokens.weight has shape {list(own.shape)} of {own.dtype}, its rows must be {H} wide")
    if target.n_embd != H or override is not None:
        return target.n_embd != H or bool(override)
    similarity = _similarity(own, target)
    if similarity is None:
        trained = config.flag("embed_requires_grad") is True
        if not trained:
            notes.append("embed_tokens is taken for a copy of the target's; --own-embedding keeps it")
        return trained
    if similarity > 0.9:
        return config.flag("embed_requires_grad") is True and similarity < 0.9999
    notes.append(f"embed_tokens is not the target's (similarity {similarity:.2f}): kept; --no-own-embedding drops it")
    return True


def _similarity(own: Tensor, target: TargetFacts) -> float | None:
    """The mean cosine between rows of the head's embedding and the target's; None where those cannot be read."""
    n_rows = min(own.shape[0], target.n_vocab)
    if target.embedding is None or n_rows < 1:
        return None
    ids = np.unique(np.linspace(0, n_rows - 1, N_SAMPLED).astype(np.int64))
    try:
        theirs = target.embedding(ids)
    except (NotImplementedError, IndexError):
        return None  # a storage type that only ggml can read
    mine: npt.NDArray[Any] = own.decode(own.load()[ids])
    norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    used = norms > 0
    return float(((mine * theirs).sum(axis=1)[used] / norms[used]).mean()) if used.any() else None
