"""A model's checkpoint to GGUF: checked before, converted by llama.cpp's own converter, quantised, and proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf

from eagle_edge.errors import FileFormatError
from eagle_edge.gguf_header import read_header

from .draft_cost import DraftCost, measure_draft_cost
from .encode import QUANTIZATIONS
from .model_checks import ModelFacts, check_model
from .proof import Proof, prove_model
from .quantize import FILE_TYPES, FLOAT_TYPES, bits_per_weight, needs_imatrix, quantise, seconds_per_weight
from .reference import run_reference
from .untie import is_tied, untie_output
from .write import Progress, check_output, check_room, replacing

__all__ = ["ConvertedModel", "convert_target"]

Announce = Callable[[str], None]
_STORED = {"bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """What was written: the file, its bytes, what to know about it, the proof or why there is none, what it costs."""

    path: Path
    n_bytes: int
    notes: tuple[str, ...]
    proof: Proof | str | None
    cost: tuple[DraftCost, ...] | str | None = None


def convert_target(
    checkpoint: str | Path,
    output: str | Path,
    quantize: str = "q4_k_m",
    *,
    imatrix: str | Path | None = None,
    pre_tokenizer: str | None = None,
    trust_remote_code: bool = False,
    check: bool = True,
    untie: str | None = None,
    for_draft: bool = False,
    n_threads: int | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> ConvertedModel:
    """Convert the Hugging Face folder ``checkpoint`` to the GGUF file ``output``.

    Args:
        checkpoint: a folder with config.json, weights and tokenizer.
        output: the file to write, or a folder to put a conventionally named one in; it appears complete or not at all.
        quantize: any type of llama.cpp's quantiser, a key of ``FILE_TYPES``.
        imatrix: an importance matrix; the smallest types need one.
        pre_tokenizer: the name of the tokenizer's pre-tokenizer in llama.cpp, where its converter does not know it.
        trust_remote_code: let Python code in the checkpoint run.
        check: run the result against the source in transformers before it is kept.
        untie: give a model whose output matrix is its token embedding one of its own, stored as this type.
        for_draft: measure what verifying drafts costs here with the result, and whether untying makes it cheaper.
        n_threads: for the quantiser; all by default.
        announce: told what will be written and how long it takes before it begins, and then each stage.
        progress: called with bytes written and bytes expected, stage by stage.

    Raises:
        FileFormatError: the checkpoint cannot be converted, or the result does not compute the same.
        DependencyError: llama.cpp's converter cannot be fetched.
        ValueError: an unknown ``quantize``, one that needs ``imatrix``, or the output would replace what is read.
        OSError: not enough room on the disk.
    """
    if quantize not in FILE_TYPES:
        raise ValueError(f"quantize must be one of {', '.join(FILE_TYPES)}, got {quantize!r}")
    if needs_imatrix(quantize) and imatrix is None:
        raise ValueError(f"{quantize} needs an importance matrix; give one with --imatrix or choose a larger type")
    if untie is not None and untie not in QUANTIZATIONS:
        raise ValueError(f"--untie-output must be one of {', '.join(QUANTIZATIONS)}, got {untie!r}")
    source, path = Path(checkpoint), Path(output)
    if imatrix is not None and not Path(imatrix).is_file():
        raise FileFormatError(f"{imatrix}: no such file")
    facts = check_model(source, trust_remote_code)
    if path.is_dir():
        name = gguf.naming_convention(source.resolve().name, None, None, None, None, quantize)
        path = path / f"{name}.gguf"
    check_output(path, source)
    tell = announce or (lambda text: None)
    stored = quantize if quantize in FLOAT_TYPES else _STORED.get(facts.dtype, "f32")
    n_stored, n_final = (int(facts.n_params * bits_per_weight(kind) / 8) for kind in (stored, quantize))
    check_room(path, n_final + (n_stored if stored != quantize else 0))
    _say(tell, facts, quantize, n_final, n_threads)
    with replacing(path) as partial, _intermediate(path, partial, stored == quantize) as first:
        tell(f"converting to {stored}")
        notes = run_reference(
            source,
            first,
            stored,
            pre_tokenizer=pre_tokenizer,
            metadata={"general.quantized_by": "eagle-edge"},
            expected_bytes=n_stored,
            progress=progress,
        )
        if stored != quantize:
            tell(f"quantising to {quantize}")
            fallbacks = quantise(
                first, partial, quantize, Path(imatrix) if imatrix else None, n_threads, n_final, progress
            )
            if fallbacks:
                notes.append(f"rows are not whole blocks of that type: {', '.join(fallbacks)}")
        if untie is not None:
            notes += _untied(partial, untie, first)
        read_header(partial)
        proof: Proof | str | None = None
        if check:
            tell("checking against transformers")
            coarsest = min(quantize, untie or quantize, key=bits_per_weight)
            proof = prove_model(source, partial, coarsest, facts.n_params, trust_remote_code)
    cost = None
    if for_draft:
        tell("measuring what verification costs here, with native kernels and with llama.cpp's")
        cost = measure_draft_cost(path)
    return ConvertedModel(path, path.stat().st_size, tuple(notes), proof, cost)


def _untied(path: Path, quantize: str, unquantised: Path) -> list[str]:
    """Rewrite a tied model in place; a note where there is nothing to do."""
    if not is_tied(path):
        return ["the model has an output matrix of its own: nothing to untie"]
    untied = path.with_name(f"{path.name}.untied")
    try:
        untie_output(path, untied, quantize, unquantised)
        untied.replace(path)
    finally:
        untied.unlink(missing_ok=True)
    return []


@contextmanager
def _intermediate(path: Path, partial: Path, direct: bool) -> Iterator[Path]:
    """Where the unquantised model goes: to ``partial`` itself, or to a file that lives as long as the block."""
    if direct:
        yield partial
        return
    first = path.with_name(path.name + ".unquantised.partial")
    try:
        yield first
    finally:
        first.unlink(missing_ok=True)


def _say(tell: Announce, facts: ModelFacts, quantize: str, n_final: int, n_threads: int | None) -> None:
    seconds = facts.n_params * seconds_per_weight(quantize, n_threads or 1)
    time = f", quantising takes about {seconds:.0f} s" if seconds >= 1 else ""
    tell(
        f"{facts.architecture}, {facts.n_params / 1e6:.0f} million parameters in {facts.dtype}: "
        f"about {n_final / 1e6:.0f} MB as {quantize}{time}"
    )
