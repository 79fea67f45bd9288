"""The target: evaluates a token tree after the committed text, keeps one path of it, and reads taps.

It knows nothing of drafts, sampling or text beyond its own tokenizer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from .config import KV_TYPES, TargetParams
from .errors import FileFormatError
from .kernels import choose_kernels
from .native import Handle, array, call, ffi, lib, out_array
from .threads import Governor
from .tree import Tree

__all__ = ["Evaluation", "Target"]

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
TapRoute = Literal["auto", "layer_input", "callback"]

_FLASH = {"auto": -1, "off": 0, "on": 1}
_ROUTES = {"auto": lib.EE_TAPS_AUTO, "layer_input": lib.EE_TAPS_LAYER_INPUT, "callback": lib.EE_TAPS_CALLBACK}


class Evaluation:
    """The rows of one evaluation, read on demand until the target's next evaluation.

    Attributes:
        n_nodes: its rows.
        ms: milliseconds it took.
    """

    def __init__(self, target: Target, number: int, n_nodes: int, ms: float) -> None:
        self._target = target
        self._number = number
        self.n_nodes = n_nodes
        self.ms = ms

    def logits(self, node: int) -> Float32:
        """[V] float32: the logits after ``node``."""
        logits: Float32 = self.peek(node).copy()
        return logits

    def peek(self, node: int) -> Float32:
        """The same without a copy: read-only, and only until the target's next evaluation."""
        out = ffi.new("float **")
        call(lib.ee_target_logits, self._current(), node, out)
        logits: Float32 = np.frombuffer(ffi.buffer(out[0], 4 * self._target.n_vocab), np.float32)
        logits.flags.writeable = False
        return logits

    def taps(self, nodes: Sequence[int]) -> Float32:
        """[len(nodes), K*E] float32: the taps of ``nodes``."""
        rows, rows_pointer = array(nodes, np.int32)
        out, pointer = out_array((len(rows), self._target.tap_width), np.float32)
        call(lib.ee_target_taps, self._current(), rows_pointer, len(rows), pointer)
        return out

    def _current(self) -> object:
        if self._target.n_evals != self._number:
            raise ValueError("this evaluation is over: the target has evaluated something else since")
        return self._target.handle.pointer


class Target:
    """A GGUF model loaded by llama.cpp, with a cache that can branch.

    Args:
        path: the GGUF file.
        params: how to load it.

    Attributes:
        n_vocab, n_embd, n_layer, n_ctx: V, E, the number of layers, and positions of text.
        can_branch: False for recurrent and hybrid models, which evaluate chains only and rewind only to the start.
        n_evals: evaluations so far.

    Raises:
        FileFormatError: no such file, or llama.cpp cannot load it.
        NativeError: no memory for the context.
    """

    def __init__(self, path: str | os.PathLike[str], params: TargetParams | None = None) -> None:
        self.path = os.fspath(path)
        self.params = params = params or TargetParams()
        if not os.path.isfile(self.path):
            raise FileFormatError(f"{self.path}: no such file")
        choose_kernels(params.kernels)
        out = ffi.new("ee_target **")
        call(lib.ee_target_open, os.fsencode(self.path), _native_params(params), out)
        self.handle = Handle(out[0], lib.ee_target_free)
        info = ffi.new("ee_target_info *")
        lib.ee_target_get_info(self.handle.pointer, info)
        self.n_vocab = int(info.n_vocab)
        self.n_embd = int(info.n_embd)
        self.n_layer = int(info.n_layer)
        self.n_ctx = int(info.n_ctx)
        self.n_ctx_train = int(info.n_ctx_train)
        self.can_branch = bool(info.can_branch)
        self.layer_input_taps = bool(info.layer_input_taps)
        self.n_params = int(info.n_params)
        self.model_bytes = int(info.model_bytes)
        self.cache_bytes = int(info.cache_bytes)
        self.boundaries: tuple[int, ...] = ()
        self.n_evals = 0
        self._governor = Governor(params.n_threads) if params.make_room else None
        self._n_threads = params.n_threads
        self._pieces: dict[tuple[int, bool], bytes] = {}  # by token and whether control tokens are wanted

    # -- evaluation ----------------------------------------------------------------------------------------------------

    @property
    def n_past(self) -> int:
        """Committed tokens."""
        return int(lib.ee_target_n_past(self.handle.pointer))

    @property
    def graph_rows(self) -> int:
        """Rows of the last evaluation's graph, blank ones included."""
        return int(lib.ee_target_graph_rows(self.handle.pointer))

    @property
    def tap_width(self) -> int:
        """K*E: floats in one row of taps."""
        return len(self.boundaries) * self.n_embd

    @property
    def n_prefill(self) -> int:
        """Most ids that one ``prefill`` takes.

        States at the end of the graph exist only where logits are computed, which is at most ``max_nodes`` rows.
        """
        n_batch, at_the_end = self.params.n_batch, {-1, self.n_layer} & set(self.boundaries)
        return min(n_batch, self.params.max_nodes) if at_the_end else n_batch

    def set_taps(self, boundaries: Sequence[int], route: TapRoute = "auto") -> None:
        """Read the residual stream entering these layers from now on; drops what is committed.

        Args:
            boundaries: K layer numbers; ``n_layer`` is the output of the last layer, -1 the state after the final norm.
            route: "layer_input" reads the graph's own layer inputs (19 architectures), "callback" works elsewhere.

        Raises:
            ValueError: a boundary is out of range, repeated, or not available by this route.
        """
        values, pointer = array(boundaries, np.int32)
        call(lib.ee_target_set_taps, self.handle.pointer, pointer, len(values), _ROUTES[route])
        self.boundaries = tuple(int(b) for b in values)
        self.n_evals += 1

    def prefill(self, ids: Sequence[int] | Int32) -> Evaluation:
        """Evaluate and commit at most ``n_prefill`` ids without logits; their taps are rows 0.. of the evaluation."""
        n = len(ids)
        evaluation = self._eval(ids, np.arange(-1, n - 1, dtype=np.int32), lib.EE_LOGITS_NONE)
        self.commit(range(n))
        return evaluation

    def eval_tree(self, tree: Tree) -> Evaluation:
        """Evaluate every node of ``tree`` after the committed text; nothing is committed.

        Raises:
            ValueError: more nodes than ``max_nodes``, or a branch on a target that cannot branch.
            NativeError: no room in the cache, or llama.cpp failed.
        """
        return self._eval(tree.tokens, tree.parent, lib.EE_LOGITS_ALL)

    def _eval(self, tokens: Sequence[int] | Int32, parent: Int32, rows: int) -> Evaluation:
        ids, ids_pointer = array(tokens, np.int32)
        _, parent_pointer = array(parent, np.int32)
        self.n_evals += 1
        self._spare_busy_cores()
        start = time.perf_counter()
        call(lib.ee_target_eval, self.handle.pointer, ids_pointer, parent_pointer, len(ids), rows)
        return Evaluation(self, self.n_evals, len(ids), (time.perf_counter() - start) * 1e3)

    def _spare_busy_cores(self) -> None:
        n_threads = self.params.n_threads if self._governor is None else self._governor.choose()
        if n_threads != self._n_threads:
            self._n_threads = n_threads
            call(lib.ee_target_set_threads, self.handle.pointer, n_threads)

    @property
    def n_threads(self) -> int:
        """Threads of the latest evaluation; fewer than asked for while other programs keep cores busy."""
        return self._n_threads

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path``, root first, and drop the rest of the last evaluation."""
        nodes, pointer = array(path, np.int32)
        call(lib.ee_target_commit, self.handle.pointer, pointer, len(nodes))

    def rewind(self, n_past: int) -> None:
        """Forget committed tokens from position ``n_past`` on.

        Raises:
            ValueError: more than is committed, or a recurrent target and not the start.
        """
        call(lib.ee_target_rewind, self.handle.pointer, n_past)

    # -- many sequences at once, for training data ---------------------------------------------------------------------

    def eval_streams(self, tokens: Sequence[int], streams: Sequence[int], want_logits: Sequence[bool]) -> Evaluation:
        """Append token i to stream ``streams[i]``; row i is readable where ``want_logits[i]``."""
        ids, ids_pointer = array(tokens, np.int32)
        stream, stream_pointer = array(streams, np.int32)
        want, want_pointer = array(want_logits, np.int8)
        if not len(ids) == len(stream) == len(want):
            raise ValueError(f"arrays differ in length: {len(ids)}, {len(stream)}, {len(want)}")
        self.n_evals += 1
        self._spare_busy_cores()
        start = time.perf_counter()
        call(lib.ee_target_eval_streams, self.handle.pointer, ids_pointer, stream_pointer, want_pointer, len(ids))
        return Evaluation(self, self.n_evals, len(ids), (time.perf_counter() - start) * 1e3)

    def clear_stream(self, stream: int = -1) -> None:
        """Empty one stream, or all of them and leave the stream mode."""
        call(lib.ee_target_clear_stream, self.handle.pointer, stream)

    def move_stream(self, source: int, destination: int) -> None:
        """Continue what ``source`` holds in ``destination``; consecutive streams are evaluated together."""
        call(lib.ee_target_move_stream, self.handle.pointer, source, destination)

    # -- vocabulary ----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of ``text``.

        Args:
            text: any text.
            add_special: add BOS and EOS as the model asks.
            parse_special: read control tokens out of the text.
        """
        data = text.encode()
        n_out = ffi.new("int32_t *")
        out, pointer = out_array((len(data) + 8,), np.int32)
        call(
            lib.ee_tokenize, self.handle.pointer, data, len(data), add_special, parse_special, pointer, len(out), n_out
        )
        return [int(i) for i in out[: n_out[0]]]

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless ``special``."""
        known = self._pieces.get((token, special))
        if known is not None:
            return known
        n_out = ffi.new("int32_t *")
        out = ffi.new("char[]", 512)
        call(lib.ee_token_piece, self.handle.pointer, token, special, out, len(out), n_out)
        return self._pieces.setdefault((token, special), bytes(ffi.buffer(out, n_out[0])))

    def is_end(self, token: int) -> bool:
        """Whether the token ends generation."""
        return bool(lib.ee_token_is_end(self.handle.pointer, token))

    @property
    def bos(self) -> int:
        """The id of BOS, or -1."""
        return int(lib.ee_token_bos(self.handle.pointer))

    @property
    def adds_bos(self) -> bool:
        """Whether ``tokenize`` prepends BOS."""
        return bool(lib.ee_adds_bos(self.handle.pointer))

    @property
    def vocab_address(self) -> int:
        """The address of the llama_vocab, for libraries that take one; valid until ``close``."""
        return int(lib.ee_vocab_address(self.handle.pointer))

    def close(self) -> None:
        """Free the model and its context; closing again does nothing."""
        self.handle.close()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _native_params(params: TargetParams) -> object:
    native = ffi.new("ee_target_params *")
    native.n_ctx = params.n_ctx
    native.n_batch = params.n_batch
    native.n_ubatch = params.n_batch
    native.n_streams = params.max_nodes
    native.n_threads = params.n_threads
    native.n_gpu_layers = params.n_gpu_layers
    native.type_k = KV_TYPES[params.type_k]
    native.type_v = KV_TYPES[params.type_v]
    native.flash_attn = _FLASH[params.flash_attn]
    native.repack = params.repack
    native.separate_streams = params.streams
    native.pair_single_row = params.pair_single_row
    return native
