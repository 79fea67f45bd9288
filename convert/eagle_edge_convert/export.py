"""A head's GGUF back to a checkpoint that vLLM, SGLang or SafeAILab's code reads: the inverse of ``convert_head``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.errors import PairError
from eagle_edge.gguf_header import GgufHeader, TensorInfo, read_header
from eagle_edge.head_format import HeadConfig, rope_row_order
from eagle_edge.pair import check_tensors, pair_differences, read_draft_vocab

from .export_config import FORMATS, export_config, inexpressible
from .names import ROTATED, checkpoint_names
from .rope import ROPE_KEY
from .save import SavedTensor, save_pickle, save_safetensors
from .write import Progress, replacing

__all__ = ["FORMATS", "ExportedHead", "export_head"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExportedHead:
    """What was written: the folder, bytes of tensors, and what to know about it."""

    folder: Path
    n_bytes: int
    notes: tuple[str, ...]


def export_head(
    head: str | Path,
    output: str | Path,
    format: str,  # noqa: A002  the word of the command line
    target: str | Path | None = None,
    progress: Progress | None = None,
) -> ExportedHead:
    """Write the head in the GGUF file ``head`` as a checkpoint in the folder ``output``.

    Args:
        head: a head's GGUF; tensors that are quantised in it are widened to float16.
        output: the folder, made where it is missing; files appear complete or not at all.
        format: "specforge", "speculators" or "safeailab".
        target: the GGUF of its target, from which matrices that the head borrows are copied.
        progress: called with bytes written and bytes in all.

    Raises:
        FileFormatError: not a head.
        PairError: the head does not fit the target, or borrows from one that is not given.
        ValueError: the format has no word for what the head computes.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    header = read_header(head)
    config = HeadConfig.from_metadata(header)
    check_tensors(config, header)
    lender = None if target is None else read_header(target)
    if lender is not None:
        for difference in pair_differences(header, lender):
            raise PairError(difference)
    n_layer = None if lender is None else lender.get(f"{lender.architecture}.block_count", int)
    if missing := inexpressible(config, format, n_layer):
        raise ValueError(f"{head}: the {format} format has no word for {'; '.join(missing)}")
    export = _Export(header, config, lender)
    tensors = export.tensors(format)
    llama3 = _llama3(header) if config.rope_factors else None
    name = header.get("general.base_model.0.name", str, "")
    dtype = {"F32": "float32", "BF16": "bfloat16"}.get(export.widest(), "float16")
    folder = Path(output)
    save, file = (
        (save_pickle, "pytorch_model.bin") if format == "safeailab" else (save_safetensors, "model.safetensors")
    )
    with replacing(folder / "config.json") as partial:
        values = export_config(config, format, dtype, llama3, name)
        partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        with replacing(folder / file) as data:
            n_bytes = save(data, tensors, progress)
    return ExportedHead(folder, n_bytes, tuple(export.notes))


def _llama3(header: GgufHeader) -> dict[str, Any]:
    stored = header.get(ROPE_KEY, str, "")
    if not stored:
        header.fail("its llama3 rope scaling is kept as factors only; convert it again from its checkpoint")
    try:
        values = json.loads(stored)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        header.fail(f"the key {ROPE_KEY} is not a JSON object")
    return values


class _Export:
    """Tensors under their checkpoint names, read from the head, and from the target what the head borrows."""

    def __init__(self, header: GgufHeader, config: HeadConfig, lender: GgufHeader | None) -> None:
        self.header, self.config, self.lender = header, config, lender
        self.notes: list[str] = []

    def widest(self) -> str:
        """The type of the widest matrices."""
        kinds = {info.type_name for info in self.header.tensors.values() if len(info.shape) == 2}
        return next((kind for kind in ("F32", "BF16") if kind in kinds), "F16")

    def tensors(self, format_: str) -> dict[str, SavedTensor]:
        names = checkpoint_names(self.config, format_)
        out = {}
        for name, info in self.header.tensors.items():
            if name not in ("d2t", "rope_freqs.weight"):
                out[names[name]] = self.saved(self.header, name, info)
        if self.config.kind == "eagle3" and "output.weight" not in self.header.tensors:
            out["lm_head.weight"] = self.borrowed("output.weight", list(read_draft_vocab(self.config, self.header)))
        if format_ == "speculators" and "token_embd.weight" not in self.header.tensors and self.lender is not None:
            out["embed_tokens.weight"] = self.borrowed("token_embd.weight", None)
        if self.config.kind == "eagle3":
            out |= self.maps(format_)
        return out

    def saved(self, header: GgufHeader, name: str, info: TensorInfo, rows: Array | None = None) -> SavedTensor:
        """A tensor as it will be stored: as it is where floating point, otherwise as float16."""
        kind = gguf.GGMLQuantizationType(info.type)
        shape = tuple(reversed(info.shape))
        if rows is not None:
            shape = (len(rows), *shape[1:])
        if kind.name not in ("F32", "F16", "BF16"):
            self.notes.append(f"{name} is stored as {kind.name}: widened to float16")
        dtype = {"F32": "F32", "BF16": "BF16"}.get(kind.name, "F16")
        return SavedTensor(shape, dtype, self.loader(header, name, info, rows))

    def loader(self, header: GgufHeader, name: str, info: TensorInfo, rows: Array | None) -> Callable[[], Array]:
        kind = gguf.GGMLQuantizationType(info.type)
        n_rows = info.shape[1] if len(info.shape) > 1 else 1

        def load() -> Array:
            data = np.memmap(header.path, np.uint8, "r", info.offset, (n_rows, info.n_bytes // n_rows))
            chosen = data if rows is None else data[rows]
            bits = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}.get(kind.name)
            values = gguf.quants.dequantize(chosen, kind).astype(np.float16) if bits is None else chosen.view(bits)
            return self.unrotated(name, values if len(info.shape) > 1 else values.ravel())

        return load

    def unrotated(self, name: str, values: Array) -> Array:
        """Rotary rows back in the order of checkpoints."""
        if not name.endswith(ROTATED) or not name.startswith("blk."):
            return values
        D = self.config.head_dim
        order = np.argsort(rope_row_order(D))
        rows = (np.arange(0, len(values), D)[:, None] + order).ravel()
        back: Array = values[rows]
        return back

    def borrowed(self, name: str, rows: list[int] | None) -> SavedTensor:
        lender = self.lender
        if lender is None:
            raise PairError(f"{self.header.path}: borrows {name} from its target; give that with --target")
        found = name if name in lender.tensors else "token_embd.weight"
        self.notes.append(f"{name} is the target's {found}")
        return self.saved(lender, found, lender.tensors[found], None if rows is None else np.array(rows))

    def maps(self, format_: str) -> dict[str, SavedTensor]:
        """d2t as offsets and t2d; Speculators leaves both out of a full vocabulary."""
        R, V = self.config.n_draft_vocab, self.config.n_vocab
        if format_ == "speculators" and R == V:
            return {}
        ids = np.array(read_draft_vocab(self.config, self.header), np.int64)
        inside = np.zeros(V, np.bool_)
        inside[ids] = True
        return {
            "d2t": SavedTensor((R,), "I64", lambda: ids - np.arange(R)),
            "t2d": SavedTensor((V,), "BOOL", lambda: inside),
        }
