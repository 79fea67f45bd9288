"""Noise that is a function of (seed, position, stream, token id) and nothing else; it has no state.

A counter-based generator makes sampling repeatable whatever is drafted: the noise of token i at position t is the same
number whether the position is reached alone, in a chain or in a tree. Two 32-bit words are hashed per token id. The
hash is two rounds of the `lowbias32` mixer (Chris Wellons, https://github.com/skeeto/hash-prospector) with a key before
each round; the keys come from SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).

Gumbel-max: with independent E_i ~ Exp(1), argmax(score_i - log E_i) is a sample of softmax(score).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .native import array, ffi, lib, out_array

__all__ = ["ACCEPT", "DRAFT", "PICK", "RESIDUAL", "Key", "gumbel", "gumbel_argmax", "key", "rough_gumbel", "uniform"]

Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Streams: independent noise for independent decisions at one position.
PICK = 0  # the target's own choice of a token
ACCEPT = 1  # accept or reject a drafted token
RESIDUAL = 2  # the token instead of rejected ones
DRAFT = 3  # the draft's own choice when it samples

_MASK64 = (1 << 64) - 1


class Key(NamedTuple):
    """Four 32-bit words, two for each hashed word."""

    coarse: tuple[int, int]
    fine: tuple[int, int]


def _splitmix64(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def key(seed: int, position: int, stream: int = PICK) -> Key:
    """The key of one decision: of ``seed`` (64 bits) at sequence ``position``, for one of the streams above."""
    first = _splitmix64(_splitmix64(_splitmix64(seed) ^ position) ^ stream)
    second = _splitmix64(first)
    return Key((first & 0xFFFFFFFF, first >> 32), (second & 0xFFFFFFFF, second >> 32))


def _words(ids: Int32, keys: tuple[int, int]) -> UInt32:
    """[M] one hashed 32-bit word per id."""
    x = ids.astype(np.uint32)
    shifted = np.empty_like(x)
    for round_key in keys:
        x ^= np.uint32(round_key)
        x ^= np.right_shift(x, np.uint32(16), out=shifted)
        x *= np.uint32(0x7FEB352D)
        x ^= np.right_shift(x, np.uint32(15), out=shifted)
        x *= np.uint32(0x846CA68B)
        x ^= np.right_shift(x, np.uint32(16), out=shifted)
    return x


def _unit(coarse: UInt32, fine: UInt32) -> Float64:
    """[M] uniforms strictly inside (0, 1): 52 bits, the coarse word on top."""
    bits = (coarse.astype(np.uint64) << np.uint64(20)) | (fine >> np.uint32(12)).astype(np.uint64)
    unit: Float64 = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return unit


def uniform(key: Key, index: int = 0) -> float:
    """One uniform number strictly inside (0, 1); ``index`` numbers the draws of one key."""
    first, second = key.fine
    return ((_splitmix64(_splitmix64(second << 32 | first) ^ index) >> 12) + 0.5) * 2.0**-52


def gumbel(key: Key, ids: Int32) -> Float64:
    """[M] standard Gumbel noise of the token ids [M]."""
    noise: Float64 = np.negative(np.log(-np.log1p(-_unit(_words(ids, key.coarse), _words(ids, key.fine)))))
    return noise


def rough_gumbel(key: Key, ids: Int32) -> Float32:
    """[M] the noise of `gumbel` to single precision where it is large, at a fraction of the time: for guesses."""
    tokens, ids_pointer = array(ids, np.int32)
    noise, pointer = out_array((len(tokens),), np.float32)
    lib.ee_noise_rough(ids_pointer, len(tokens), ffi.new("uint32_t[2]", key.coarse), pointer)
    return noise


def gumbel_argmax(key: Key, ids: Int32 | None, scores: Float32, top: float = 0.0, temperature: float = 1.0) -> int:
    """The index m of the largest ``(scores[m] - top) / temperature + gumbel(key, ids)[m]``.

    Native, without the logarithms of those that cannot win: it is all of a vocabulary, for every token.

    Args:
        key: of the decision.
        ids: [M] int32 token ids; None for 0 to M-1.
        scores: [M] float32, unnormalised log-probabilities after shift and scale, at least one of them finite and none
            NaN or +inf.
        top: about the largest of ``scores``.
        temperature: above 0.
    """
    scores, scores_pointer = array(scores, np.float32)
    ids_pointer = ffi.NULL if ids is None else array(ids, np.int32)[1]
    words = ffi.new("uint32_t[4]", [*key.coarse, *key.fine])
    return int(lib.ee_noise_argmax(ids_pointer, scores_pointer, len(scores), top, temperature, words))
