"""A draft head's checkpoint to GGUF: read, rename by a table, reorder, write; nothing is left over or made up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle_edge.head_format import HeadConfig, rope_row_order

from .config_values import ConfigValues
from .encode import QUANTIZATIONS, Kind, Quantization, matrix_type
from .head_proof import HeadProof, prove_head
from .layouts import HeadOverrides, canonical_tensors, describe_head
from .names import ROTATED, gguf_name
from .read import Checkpoint, Tensor, open_checkpoint
from .rope import ROPE_KEY, rope_factors, rope_parameters
from .target import TargetFacts, read_target
from .tokenizer import tokenizer_file
from .vocabulary import keeps_embedding, read_draft_ids
from .write import OutTensor, Progress, check_output, check_room, replacing, write_head

__all__ = ["ConvertedHead", "HeadOverrides", "convert_head", "default_name"]

Array = npt.NDArray[Any]
Announce = Callable[[str], None]
CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class ConvertedHead:
    """What was written: the file, the head, its bytes, what was guessed or left out on purpose, and the proof.

    ``proof`` is a sentence where there is none to be had, None where none was asked for.
    """

    path: Path
    config: HeadConfig
    n_bytes: int
    notes: tuple[str, ...]
    dropped: tuple[str, ...]
    proof: HeadProof | str | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor of the checkpoint, and which of its rows in which order; None takes all as they are."""

    tensor: Tensor
    rows: npt.NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.tensor.shape
        return shape if self.rows is None else (len(self.rows), *shape[1:])


def convert_head(
    checkpoint: str | Path,
    target: str | Path,
    output: str | Path,
    quantize: str = "f16",
    overrides: HeadOverrides | None = None,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    pre_tokenizer: str | None = None,
    check: bool = True,
    announce: Announce | None = None,
) -> ConvertedHead:
    """Convert the head in the folder ``checkpoint`` for the model ``target`` to the GGUF file ``output``.

    Args:
        checkpoint: a folder in any layout of the EAGLE family; see ``names`` and ``layouts``.
        target: the GGUF or the Hugging Face folder of the model the head drafts for; tokenizer, widths and vocabulary
            come from it.
        output: the file to write, or a folder to put a conventionally named one in; it appears complete or not at all.
        quantize: how matrices are stored, a key of ``QUANTIZATIONS``. Norms and biases stay f32.
        overrides: what the user knows better than the checkpoint.
        metadata: more ``general.*`` strings, for example licence.
        progress: called with bytes written and bytes in all.
        pre_tokenizer: as in ``convert_target``, where ``target`` is a folder.
        check: run the result against the checkpoint before it is kept.
        announce: told each stage.

    Raises:
        FileFormatError: a file is broken, of another layout, a tensor is missing or left over, or the check failed.
        PairError: the head does not fit the target.
        OSError: not enough room on the disk.
        ValueError: an unknown ``quantize``, or the output would replace what is read.
    """
    if quantize not in QUANTIZATIONS:
        raise ValueError(f"quantize must be one of {', '.join(QUANTIZATIONS)}, got {quantize!r}")
    facts, source = read_target(Path(target)), open_checkpoint(Path(checkpoint))
    notes: list[str] = []
    head = _Head(source, facts, overrides or HeadOverrides(), notes)
    tensors = head.output(QUANTIZATIONS[quantize])
    general = _general(facts, head.config, {**head.metadata(), **(metadata or {})})
    path = Path(output)
    if path.is_dir():
        path = path / default_name(facts.name, quantize)
    check_output(path, source.folder, facts.path)
    check_room(path, sum(tensor.n_bytes for tensor in tensors.values()))
    proof: HeadProof | str | None = None
    with replacing(path) as partial:
        with tokenizer_file(facts, pre_tokenizer) as tokenizer:
            n_bytes = write_head(
                partial, head.config, tensors, tokenizer, QUANTIZATIONS[quantize].file_type, general, progress
            )
        if check:
            (announce or _say_nothing)("checking against the checkpoint")
            proof = prove_head(source.folder, facts.path, partial, quantize)
    return ConvertedHead(path, head.config, n_bytes, tuple(notes), tuple(head.dropped), proof)


def _say_nothing(stage: str) -> None:
    pass


def default_name(target_name: str, quantize: str) -> str:
    """The conventional file name of a head for a target."""
    import gguf

    name = gguf.naming_convention(f"eagle3-{Path(target_name).name}", None, None, None, None, quantize)
    return f"{name}.gguf"


def _general(facts: TargetFacts, config: HeadConfig, more: dict[str, str]) -> dict[str, str]:
    kind = "EAGLE-1" if config.kind == "eagle1" else "EAGLE-3"
    return {
        "general.name": f"{kind} head for {facts.name}",
        "general.base_model.0.name": facts.name,
        "general.quantized_by": "eagle-edge",
        **({"general.license": facts.licence} if facts.licence else {}),
        **more,
    }


class _Head:
    """A checkpoint matched with its target: every tensor is used, left out on purpose, or the end of it."""

    def __init__(self, source: Checkpoint, facts: TargetFacts, overrides: HeadOverrides, notes: list[str]) -> None:
        self.source, self.notes = source, notes
        self.values = ConfigValues(source)
        tensors = canonical_tensors(source)
        # Everything after this may rely on an attention output: it says how wide the head is.
        width = tensors.get("layers.0.self_attn.o_proj.weight")
        if width is None or len(width.shape) != 2:
            self.values.fail("no layers.0.self_attn.o_proj.weight (or midlayer, or transformer): not an EAGLE head")
        self.ids = read_draft_ids(self.values, tensors, facts, notes)
        n_draft_vocab = facts.n_vocab if self.ids is None else len(self.ids)
        self.config = describe_head(self.values, tensors, facts, n_draft_vocab, overrides, notes)
        self.own_embedding = keeps_embedding(self.values, tensors, facts, overrides.own_embedding, notes)
        self.dropped: list[str] = []
        self.sources = self._rename(tensors)
        self._output_matrix(facts)
        self._check_complete()

    def _rename(self, tensors: Mapping[str, Tensor]) -> dict[str, _Source]:
        out = {}
        unwanted = {"d2t": True, "token_embd.weight": not self.own_embedding}
        unwanted["output.weight"] = self.config.kind == "eagle1"  # it drafts with the target's
        unwanted["enc.output_norm.weight"] = not self.config.norm_before_fc
        for name, tensor in tensors.items():
            try:
                renamed = gguf_name(name)
            except KeyError:
                self.values.fail(f"the tensor {name} belongs to no known layout")
            if renamed is None or unwanted.get(renamed):
                if name not in ("d2t", "t2d") or self.ids is None:
                    self.dropped.append(name)
            else:
                out[renamed] = _Source(tensor, self._rows(renamed, tensor))
        return out

    def _rows(self, name: str, tensor: Tensor) -> npt.NDArray[np.int64] | None:
        """Rotary rows in ggml's order; of the large matrices only the rows that have a token."""
        n_rows, D = tensor.shape[0] if tensor.shape else 0, self.config.head_dim
        if name.endswith(ROTATED):
            if n_rows % D:
                self.values.fail(f"{name} has {n_rows} rows, not a multiple of the head width {D}")
            starts = np.arange(0, n_rows, D, dtype=np.int64)[:, None]
            order: npt.NDArray[np.int64] = (starts + np.array(rope_row_order(D))).ravel()
            return order
        wanted = {"output.weight": self.config.n_draft_vocab, "token_embd.weight": self.config.n_vocab}.get(name)
        return np.arange(wanted, dtype=np.int64) if wanted is not None and n_rows > wanted else None

    def _output_matrix(self, facts: TargetFacts) -> None:
        """Say what stands in for an output matrix that is not there."""
        if self.config.kind == "eagle1" or "output.weight" in self.sources:
            return
        if self.values.flag("tie_word_embeddings"):
            if self.own_embedding and self.ids is None:
                self.sources["output.weight"] = self.sources["token_embd.weight"]
                return
            if not facts.tied:
                self.values.fail("the head's output is tied to an embedding that the target does not draft with")
        if self.config.n_embd != self.config.n_embd_target:
            self.values.fail("no lm_head.weight, and the target's is of another width")
        self.notes.append("no lm_head is stored: the rows of the target's output matrix are borrowed")

    def _check_complete(self) -> None:
        H, config = self.config.n_embd, self.config
        expected = set(config.tensors()) - {"d2t", "rope_freqs.weight"}
        optional = {"output.weight", "token_embd.weight"}
        missing, extra = expected - set(self.sources), set(self.sources) - expected - optional
        if missing:
            self.values.fail(f"tensors are missing for {', '.join(sorted(missing)[:8])}")
        if extra:
            self.values.fail(f"this head has no use for {', '.join(sorted(extra)[:8])}")
        shapes = {**config.tensors(), "output.weight": (H, config.n_draft_vocab)}
        shapes["token_embd.weight"] = (H, config.n_vocab)
        for name, source in self.sources.items():
            wanted = shapes[name][::-1]
            padded = name == "token_embd.weight" and source.shape[1:] == wanted[1:] and len(source.shape) == 2
            if source.shape != wanted and not padded:
                self.values.fail(f"{name} has shape {list(source.shape)}, the head needs {list(wanted)}")
            if not source.tensor.is_float:
                self.values.fail(f"{name} is stored as {source.tensor.dtype}: quantised; get the unquantised head")

    def metadata(self) -> dict[str, str]:
        """llama3's rope parameters, which the tensor made of them does not tell; ``export_head`` wants them."""
        return {ROPE_KEY: json.dumps(rope_parameters(self.values))} if self.config.rope_factors else {}

    def output(self, quantization: Quantization) -> dict[str, OutTensor]:
        """The tensors of the file, in one order whatever the checkpoint's."""
        out, others = {}, defaultdict(list)
        order = [*self.config.tensors(), "output.weight", "token_embd.weight"]
        for name in [name for name in order if name in self.sources]:
            source, kind = self.sources[name], Kind.F32
            if len(source.shape) == 2:
                kind, reason = matrix_type(name, source.shape[1], quantization)
                others[reason].append(f"{name} {kind.name}")
            stays = (source.tensor.dtype, kind) in (("float16", Kind.F16), ("bfloat16", Kind.BF16))
            out[name] = OutTensor(source.shape, kind, lambda source=source, stays=stays: _chunks(source, stays))  # type: ignore[misc]
        if self.config.rope_factors:
            factors = rope_factors(self.values, self.config.head_dim, self.config.rope_theta)
            out["rope_freqs.weight"] = OutTensor(factors.shape, Kind.F32, lambda: iter((factors,)))
        if self.ids is not None:
            ids = self.ids
            out["d2t"] = OutTensor(ids.shape, Kind.I64, lambda: iter((ids,)))
        self.notes.extend(f"{reason}: {', '.join(names)}" for reason, names in others.items() if reason)
        return out


def _chunks(source: _Source, as_bits: bool) -> Iterator[Array]:
    """The rows as numbers, or as the bits they are stored in."""
    bits = source.tensor.load()
    n_rows = source.shape[0]
    step = n_rows if bits.ndim == 1 else max(1, CHUNK_VALUES // max(bits.shape[1], 1))
    for start in range(0, n_rows, step):
        rows = bits[slice(start, start + step) if source.rows is None else source.rows[start : start + step]]
        yield rows if as_bits else source.tensor.decode(rows)
