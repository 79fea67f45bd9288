"""What can be wrong with a model's checkpoint, said in one line each before anything is converted."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eagle_edge.errors import FileFormatError

from .read import Checkpoint, open_checkpoint, read_json

__all__ = ["ModelFacts", "check_model"]

# The published form of some models, which the reference converter reads as it is.
_NATIVE_QUANTIZATIONS = ("mxfp4",)
_QUANTISED_MARKS = (".absmax", ".quant_state", ".qweight", ".qzeros", ".weight_scale", ".weight_scale_inv")
ADVICE = "get the unquantised model and let --quantize do it"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes of a checkpoint: parameters, bytes, the type most of it is stored in, and its architecture."""

    architecture: str
    n_params: int
    n_bytes: int
    dtype: str


def check_model(folder: Path, trust_remote_code: bool = False) -> ModelFacts:
    """The facts about the model in ``folder``.

    Raises:
        FileFormatError: an adapter, quantised, a shard is missing, vocabularies disagree, or it wants to run code.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        _fail(folder, "config.json names no architecture: not a model")
    if (folder / "adapter_config.json").exists():
        _fail(folder, "holds an adapter; merge it into its base model first")
    if any(
        name in ("fc.weight", "fusion_fc.weight") or name.endswith(".hidden_norm.weight") for name in checkpoint.tensors
    ):
        _fail(folder, "holds a draft head, not a model; use: eagle-edge convert head")
    _check_quantised(checkpoint)
    if not trust_remote_code:
        _check_code(folder, config)
    _check_vocabulary(checkpoint)
    sizes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + math.prod(tensor.shape)
    width = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
    dtype = max(sizes, key=lambda name: sizes[name], default="float32")
    n_bytes = sum(n * width.get(name, 8) for name, n in sizes.items())
    return ModelFacts(architectures[0], sum(sizes.values()), n_bytes, dtype)


def _fail(folder: Path, message: str) -> NoReturn:
    raise FileFormatError(f"{folder}: {message}")


def _check_quantised(checkpoint: Checkpoint) -> None:
    stored = checkpoint.config.get("quantization_config")
    if stored is not None:
        method = stored.get("quant_method", "some method") if isinstance(stored, dict) else stored
        if method not in _NATIVE_QUANTIZATIONS:
            _fail(checkpoint.folder, f"config.json says the weights are quantised ({method}); {ADVICE}")
        return
    for name, tensor in checkpoint.tensors.items():
        packed = tensor.dtype in ("uint8", "int8") and name.endswith("weight")
        if packed or any(mark in name for mark in _QUANTISED_MARKS):
            _fail(checkpoint.folder, f"the tensor {name} ({tensor.dtype}) is of a quantised model; {ADVICE}")


def _check_code(folder: Path, config: Any) -> None:
    for file, values in (
        ("config.json", config),
        ("tokenizer_config.json", _optional(folder / "tokenizer_config.json")),
    ):
        if values.get("auto_map"):
            _fail(
                folder,
                f"{file} asks to run Python code that comes with the model (auto_map); --trust-remote-code allows it",
            )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _check_vocabulary(checkpoint: Checkpoint) -> None:
    text = checkpoint.config.get("text_config")
    config = {**checkpoint.config, **text} if isinstance(text, dict) else checkpoint.config
    rows = [
        tensor.shape[0]
        for name, tensor in checkpoint.tensors.items()
        if name.endswith("embed_tokens.weight") and tensor.shape
    ]
    stored = config.get("vocab_size")
    if len(rows) == 1 and type(stored) is int and rows[0] != stored:
        _fail(checkpoint.folder, f"config.json says {stored} tokens, the embedding has {rows[0]} rows")
    n_tokens = _n_tokenizer(checkpoint.folder / "tokenizer.json")
    limit = rows[0] if len(rows) == 1 else stored
    if n_tokens is not None and type(limit) is int and n_tokens > limit:
        _fail(
            checkpoint.folder,
            f"the tokenizer has {n_tokens} tokens, the embedding {limit}: the files do not belong together",
        )


def _n_tokenizer(path: Path) -> int | None:
    """One more than the highest token id, or None where there is no such file."""
    if not path.exists():
        return None
    values = read_json(path)
    try:
        vocab = values["model"]["vocab"]
        ids = list(vocab.values()) if isinstance(vocab, dict) else range(len(vocab))
        added = [token["id"] for token in values.get("added_tokens") or []]
        return int(max([*ids, *added])) + 1
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FileFormatError(f"{path}: is not a tokenizer that tokenizers wrote: {json.dumps(values)[:60]}") from None
