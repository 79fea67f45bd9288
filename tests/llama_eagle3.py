"""A head run by llama.cpp's own ``eagle3`` graph, through the installed libllama: the other reader of our files."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

ENCODE, DECODE = 0, 1


@contextmanager
def _context(path: Path, other: Any = None) -> Iterator[tuple[Any, Any]]:
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp refuses {path}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32  # as our own draft keeps them for a head in f32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds to half precision
    params.ctx_other = other
    context = llama_cpp.llama_init_from_model(model, params)
    try:
        assert context
        yield model, context
    finally:
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def chain_logits(
    head: Path, target: Path, tokens: npt.NDArray[np.int32], taps: npt.NDArray[np.float32], n_draft: int
) -> npt.NDArray[np.float32]:
    """[n_draft + 1, V] after the last pair and along a chain of the tokens that follow; -inf outside the draft's."""
    n = len(taps)
    with _context(target) as (_, other), _context(head, other) as (model, context):
        nextn(context)
        g = process(context, ENCODE, [(None, position, row) for position, row in enumerate(taps)], n_embd(model))
        rows = process(context, DECODE, list(zip(map(int, tokens[:n]), range(n), g, strict=True)), n_embd(model))
        out = [logits(model, context)]
        for step in range(n_draft):
            pair = (int(tokens[n + step]), n + step, rows[-1])
            rows = process(context, DECODE, [pair], n_embd(model))
            out.append(logits(model, context))
    return np.stack(out)


def n_embd(model: Any) -> int:
    return int(llama_cpp.llama_model_n_embd(model))


def logits(model: Any, context: Any) -> npt.NDArray[np.float32]:
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return np.array(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n_vocab,)), np.float32)


def nextn(context: Any) -> None:
    """Ask for the states that are fed back; the function is exported, but not in the public header."""
    function = llama_cpp.llama_cpp._lib._Z26llama_set_embeddings_nextnP13llama_contextbb
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    function(context, True, False)


def process(context: Any, kind: int, rows: Any, width: int) -> npt.NDArray[np.float32]:
    """[n, width] the states of rows of (token or None, position, vector)."""
    batch = llama_cpp.llama_batch_ext_init(context)
    kept = []
    for token, position, vector in rows:
        kept.append(np.ascontiguousarray(vector, np.float32))
        data = kept[-1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        embedding = llama_cpp.llama_embd(data, 1, len(kept[-1]))
        if token is None:
            index = llama_cpp.llama_batch_ext_add_embd(batch, 0, embedding)
        else:
            index = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            assert llama_cpp.llama_batch_ext_set_embd_token(batch, index, embedding)
        assert llama_cpp.llama_batch_ext_set_pos(batch, index, ctypes.byref(ctypes.c_int32(position)))
        assert llama_cpp.llama_batch_ext_set_output_logits(batch, index, True)
    assert llama_cpp.llama_process(context, kind, batch) == 0
    llama_cpp.llama_batch_ext_free(batch)
    read = llama_cpp.llama_cpp._lib._Z26llama_get_embeddings_nextnP13llama_context
    read.argtypes, read.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_float)
    return np.array(np.ctypeslib.as_array(read(context), (len(kept), width)), np.float32)
