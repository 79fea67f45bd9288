"""The draft: an EAGLE head that proposes a token tree from the target's taps.

It keeps its own cache of pairs: the taps of position t with the token at t + 1. It knows nothing of the target's cache,
of verification or of text.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .config import DraftParams
from .expand import Children, expand
from .gguf_header import GgufHeader, read_header
from .head_format import HeadConfig
from .native import Handle, array, call, ffi, lib, out_array
from .pair import check_pair
from .same_noise import NO_NOISE, Noise
from .tree import Tree

__all__ = ["Draft"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class Draft:
    """An EAGLE head, loaded and checked against its target's file.

    Args:
        head: a GGUF file of architecture ``eagle3`` or ``eagle``, or its header where that has been read already.
        target: the target's file or header; what the head lacks (embedding, output matrix) is read from the file.
        n_ctx: pairs the cache can hold.
        n_threads: CPU threads.
        params: the largest tree that will be asked for.
        n_gpu_layers: 0 runs the head on the CPU, anything else on the first GPU that can.

    Attributes:
        config: what the head is.
        vocab: [R] int32, the target id of each draft id.
        own_embedding, own_output: False where the matrix is borrowed from the target.
        weight_bytes, cache_bytes: memory.

    Raises:
        FileFormatError: a file is missing, broken or not a head.
        PairError: head and target do not fit.
        NativeError: no memory.
    """

    def __init__(
        self,
        head: str | os.PathLike[str] | GgufHeader,
        target: str | os.PathLike[str] | GgufHeader,
        *,
        n_ctx: int,
        n_threads: int,
        params: DraftParams | None = None,
        n_gpu_layers: int = 0,
    ) -> None:
        params = params or DraftParams()
        head, target = (
            file if isinstance(file, GgufHeader) else read_header(os.fspath(file)) for file in (head, target)
        )
        self.config = HeadConfig.from_metadata(head)
        check_pair(head, target)
        self.max_top_k = min(params.top_k, self.config.n_draft_vocab)
        self._n_threads = n_threads
        settings = {
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "max_nodes": max(params.total, params.depth * params.top_k),
            "max_top_k": self.max_top_k,
            "n_gpu_layers": n_gpu_layers,
        }
        out = ffi.new("ee_draft **")
        native_params = ffi.new("ee_draft_params *", settings)
        call(lib.ee_draft_open, os.fsencode(head.path), os.fsencode(target.path), native_params, out)
        self.handle = Handle(out[0], lib.ee_draft_free)
        info = ffi.new("ee_draft_info *")
        lib.ee_draft_get_info(self.handle.pointer, info)
        self.own_embedding = bool(info.own_embedding)
        self.own_output = bool(info.own_output)
        self.weight_bytes = int(info.weight_bytes)
        self.cache_bytes = int(info.cache_bytes)
        self.vocab, pointer = out_array((self.config.n_draft_vocab,), np.int32)
        call(lib.ee_draft_vocab, self.handle.pointer, pointer)
        self._tap_width = len(self.config.taps) * self.config.n_embd_target
        self._best = out_array((self.max_top_k,), np.int32), out_array((self.max_top_k,), np.float32)
        self._first: Children | None = None

    @property
    def n_pairs(self) -> int:
        """Committed pairs."""
        return int(lib.ee_draft_n_pairs(self.handle.pointer))

    def set_threads(self, n_threads: int) -> None:
        """Use this many CPU threads from now on."""
        if n_threads == self._n_threads:
            return
        self._n_threads = n_threads
        call(lib.ee_draft_set_threads, self.handle.pointer, n_threads)

    def extend(self, next_tokens: Sequence[int] | Int32, taps: Float32, *, last: bool = True) -> None:
        """Commit pairs and drop the tree of the last round.

        Args:
            next_tokens: [m] the token after each position.
            taps: [m, K*E] the target's taps of the positions.
            last: False where more pairs follow before anything is drafted, which then costs no output.

        Raises:
            ValueError: shapes differ, or a token is outside the vocabulary.
            NativeError: no room left in the cache, or the head's logits are not finite.
        """
        tokens, tokens_pointer = array(next_tokens, np.int32)
        rows, rows_pointer = array(taps, np.float32, 2)
        if rows.shape != (len(tokens), self._tap_width):
            raise ValueError(f"taps should have shape {(len(tokens), self._tap_width)}, not {rows.shape}")
        self._first = None
        (ids, ids_pointer), (logprobs, logprobs_pointer) = self._best
        call(
            lib.ee_draft_extend,
            self.handle.pointer,
            tokens_pointer,
            rows_pointer,
            len(tokens),
            self.max_top_k if last else 0,
            ids_pointer,
            logprobs_pointer,
        )
        if last:
            self._first = (ids, logprobs)

    def level(self, tokens: Int32, parents: Int32, top_k: int) -> Children:
        """Evaluate nodes of this round's tree, numbered in the order of evaluation, and give their best children.

        Args:
            tokens: [n] int32.
            parents: [n] int32 numbers of earlier nodes, -1 for the last pair.
            top_k: children of each node; 0 skips the output.

        Returns:
            [n, top_k] tokens and log-probabilities, best first.
        """
        values, tokens_pointer = array(tokens, np.int32)
        above, parents_pointer = array(parents, np.int32)
        if len(values) != len(above):
            raise ValueError(f"{len(values)} tokens and {len(above)} parents")
        ids, ids_pointer = out_array((len(values), top_k), np.int32)
        logprobs, logprobs_pointer = out_array((len(values), top_k), np.float32)
        call(
            lib.ee_draft_level,
            self.handle.pointer,
            tokens_pointer,
            parents_pointer,
            len(values),
            top_k,
            ids_pointer,
            logprobs_pointer,
        )
        return ids, logprobs

    def propose(
        self,
        root: int,
        params: DraftParams,
        room: int,
        noise: Noise = NO_NOISE,
    ) -> Tree:
        """The tree under ``root``, the token of the last pair; nodes lie at most ``room`` deep.

        Args:
            root: a token.
            params: the size of the tree.
            room: positions left below the root.
            noise: the target's, to guess samples; the last pair has been read with that of the first level, and who
                started it stops it.

        Raises:
            ValueError: nothing is committed since the last rewind, or ``params.top_k`` exceeds what was asked at load.
        """
        first = self.first
        if min(params.top_k, self.config.n_draft_vocab) > self.max_top_k:
            raise ValueError(f"top_k is {params.top_k}, the draft was loaded for at most {self.max_top_k}")
        call(lib.ee_draft_rewind, self.handle.pointer, self.n_pairs)  # a tree proposed before is dropped
        depths = itertools.count(2)

        def level(tokens: Int32, parents: Int32, top_k: int) -> Children:
            noise.perturb(self, next(depths))
            return self.level(tokens, parents, min(top_k, self.max_top_k))

        return expand(root, first, level, params, room)

    @property
    def first(self) -> Children:
        """The children of the last pair: [max_top_k] tokens and log-probabilities, best first, until the next pair.

        Raises:
            ValueError: nothing is committed since the last rewind.
        """
        if self._first is None:
            raise ValueError("extend the draft before it proposes")
        return self._first

    def perturb(self, noise: Float32 | None, reach: float = np.inf) -> None:
        """From the next evaluation on, rank children by softmax(logits + noise).

        Args:
            noise: [R]; None stops.
            reach: tokens whose logits, without the noise, lie further below the largest one come last.
        """
        if noise is None:
            call(lib.ee_draft_perturb, self.handle.pointer, ffi.NULL, np.inf)
            return
        values, pointer = array(noise, np.float32)
        if len(values) != self.config.n_draft_vocab:
            raise ValueError(f"noise should have {self.config.n_draft_vocab} values, not {len(values)}")
        call(lib.ee_draft_perturb, self.handle.pointer, pointer, reach)

    def logits(self, node: int) -> Float32:
        """[R] the logits of a node of this round (-1: of the last pair); ``vocab`` names their tokens."""
        out, pointer = out_array((self.config.n_draft_vocab,), np.float32)
        call(lib.ee_draft_logits, self.handle.pointer, node, pointer)
        return out

    def hidden(self, node: int) -> Float32:
        """[H] the state that a node of this round (-1: the last pair) feeds back to its children."""
        out, pointer = out_array((self.config.n_embd,), np.float32)
        call(lib.ee_draft_hidden, self.handle.pointer, node, pointer)
        return out

    def rewind(self, n_pairs: int) -> None:
        """Forget pairs from ``n_pairs`` on, and the tree; extend before proposing again unless nothing was forgotten.

        Raises:
            ValueError: more than is committed.
        """
        before = self.n_pairs
        call(lib.ee_draft_rewind, self.handle.pointer, n_pairs)
        if n_pairs != before:
            self._first = None

    def close(self) -> None:
        """Free the native memory; closing again does nothing."""
        self.handle.close()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
