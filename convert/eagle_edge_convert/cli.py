"""The converters' command line; it parses and prints, the work is in ``convert_head`` and its siblings."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle_edge.errors import DependencyError, EagleEdgeError

if TYPE_CHECKING:
    from .head import ConvertedHead
    from .model import ConvertedModel

__all__ = ["app", "export", "main", "one_line"]

app = typer.Typer(help="Convert a checkpoint to GGUF.", no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PreTokenizer = Annotated[
    str | None, typer.Option("--pre-tokenizer", help="llama.cpp's name of the tokenizer's pre-tokenizer.")
]


@app.callback()
def _group() -> None:
    """Convert a checkpoint to GGUF."""


@app.command(
    "head",
    epilog="""Examples:

    eagle-edge convert head downloads/EAGLE3-LLaMA3.1-8B --target llama-3.1-8b-q4_0.gguf -o head.gguf

    eagle-edge convert head CHECKPOINT --target model.gguf -o heads/ --quantize q8_0 --tap-layers 2,16,29""",
)
def head(
    checkpoint: Annotated[Path, typer.Argument(help="Folder with config.json and the tensors of an EAGLE head.")],
    target: Annotated[Path, typer.Option("--target", help="The GGUF or Hugging Face folder the head drafts for.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF to write, or a folder.")],
    quantize: Annotated[
        str, typer.Option("--quantize", help="f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, ...")
    ] = "f16",
    tap_layers: Annotated[
        str | None, typer.Option("--tap-layers", help="Layers of the target whose inputs it reads, as 2,15,27.")
    ] = None,
    rope_theta: Annotated[
        float | None, typer.Option("--rope-theta", help="The base of the rotary embedding it was trained with.")
    ] = None,
    norm_before_residual: Annotated[
        bool | None, typer.Option(help="The residual is the normed feature (RedHat's heads).")
    ] = None,
    norm_before_fc: Annotated[bool | None, typer.Option(help="One norm over all taps before fc.")] = None,
    norm_output: Annotated[bool | None, typer.Option(help="The normed output is fed back (EAGLE-3.1).")] = None,
    own_embedding: Annotated[bool | None, typer.Option(help="Keep its token embedding, or use the target's.")] = None,
    pre_tokenizer: PreTokenizer = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Run it and its checkpoint, and compare.")] = True,
    as_json: Json = False,
) -> None:
    """Convert a draft head, whatever project trained it, and check it.

    What its checkpoint leaves unsaid is guessed by its project's rule, told in a note, and can be said here.
    """
    _need_packages()
    from .head import HeadOverrides, convert_head  # gguf takes a moment to load
    from .show import ProgressBar

    overrides = HeadOverrides(
        _taps(tap_layers), rope_theta, norm_before_residual, norm_before_fc, norm_output, own_embedding
    )
    with ProgressBar("writing") as bar:
        result = convert_head(
            checkpoint,
            target,
            output,
            quantize,
            overrides,
            progress=bar,
            pre_tokenizer=pre_tokenizer,
            check=check,
            announce=bar.stage,
        )
    _tell_head(result, as_json)


@app.command(
    "target",
    epilog="""Examples:

    eagle-edge convert target downloads/Llama-3.1-8B-Instruct -o llama-3.1-8b-q4_0.gguf --quantize q4_0

    eagle-edge convert target FOLDER -o models/ --quantize iq2_xs --imatrix imatrix.gguf

    eagle-edge convert target FOLDER -o model.gguf --for-draft    # would an output matrix of its own pay off here?""",
)
def target(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face folder: config.json, weights, tokenizer.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF to write, or a folder.")],
    quantize: Annotated[str, typer.Option("--quantize", help="Any type of llama.cpp's quantiser.")] = "q4_k_m",
    imatrix: Annotated[Path | None, typer.Option("--imatrix", help="An importance matrix.")] = None,
    pre_tokenizer: PreTokenizer = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Let the model's code run.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare logits with transformers.")] = True,
    untie_output: Annotated[
        str | None,
        typer.Option("--untie-output", metavar="TYPE", help="Give a tied model an output matrix of its own."),
    ] = None,
    for_draft: Annotated[
        bool, typer.Option("--for-draft", help="Measure what verifying drafts costs here, and advise.")
    ] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="For the quantiser.")] = None,
    as_json: Json = False,
) -> None:
    """Convert a model, quantise it, and check it against its source."""
    _need_packages()
    from .model import convert_target
    from .show import ProgressBar

    with ProgressBar("converting") as bar:
        result = convert_target(
            checkpoint,
            output,
            quantize,
            imatrix=imatrix,
            pre_tokenizer=pre_tokenizer,
            trust_remote_code=trust_remote_code,
            check=check,
            untie=untie_output,
            for_draft=for_draft,
            n_threads=threads,
            announce=bar.stage,
            progress=bar,
        )
    _tell_target(result, as_json)


def export(
    head: Annotated[Path, typer.Argument(help="A head's GGUF.")],
    format_: Annotated[str, typer.Option("--format", help="specforge, speculators or safeailab.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    target: Annotated[Path | None, typer.Option("--target", help="The GGUF of its target, to borrow from.")] = None,
    as_json: Json = False,
) -> None:
    """Write a head as a checkpoint for vLLM, SGLang or SafeAILab's code."""
    _need_packages()
    from .export import export_head
    from .show import ProgressBar

    with ProgressBar("writing") as bar:
        result = export_head(head, output, format_, target, bar)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        _print_json(folder=str(result.folder), n_bytes=result.n_bytes, notes=result.notes)
        return
    print(f"{result.folder}: {result.n_bytes / 1e6:.1f} MB of tensors in the {format_} format")


def _tell_head(result: ConvertedHead, as_json: bool) -> None:
    """Print what was written, and what is to be known about it."""
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if result.dropped:
        print(f"left out on purpose: {', '.join(result.dropped)}", file=sys.stderr)
    config = result.config
    if as_json:
        _print_json(
            path=str(result.path),
            n_bytes=result.n_bytes,
            notes=result.notes,
            dropped=result.dropped,
            config=asdict(config),
            proof=_as_json(result.proof),
        )
        return
    print(
        f"{result.path}: {result.n_bytes / 1e6:.1f} MB, architecture {config.architecture}, taps {list(config.taps)}, "
        f"{config.n_embd} wide, draft vocabulary {config.n_draft_vocab} of {config.n_vocab}"
    )
    if result.proof is not None:
        print(result.proof)
    if getattr(result.proof, "seems_to_fit", None) is False:
        print(
            "note: it hardly ever guesses what the target says: untrained, made for another target, or read wrongly "
            "(--tap-layers, --norm-before-residual, --rope-theta)",
            file=sys.stderr,
        )


def _tell_target(result: ConvertedModel, as_json: bool) -> None:
    """Print what was written, and how well it agrees with its source."""
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        _print_json(
            path=str(result.path),
            n_bytes=result.n_bytes,
            notes=result.notes,
            proof=_as_json(result.proof),
            cost=[asdict(cost) for cost in result.cost] if isinstance(result.cost, tuple) else result.cost,
        )
        return
    print(f"{result.path}: {result.n_bytes / 1e6:.1f} MB")
    if result.proof is not None:
        print(result.proof)
    for cost in (result.cost,) if isinstance(result.cost, str) else result.cost or ():
        print(cost)


def _need_packages() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise DependencyError("converting needs more packages: pip install 'eagle-edge[convert]'")


def _print_json(**values: Any) -> None:
    print(json.dumps(values))


def _as_json(proof: Any) -> Any:
    """A proof as an object; why there is none, or that none was asked for, as it is."""
    return asdict(proof) if is_dataclass(proof) and not isinstance(proof, type) else proof


app.command("export")(export)


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--tap-layers takes numbers separated by commas, got {text!r}") from None


def one_line(error: Exception) -> str:
    """What went wrong, for people: a system error begins with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        app(args=argv)
    except KeyboardInterrupt:
        sys.exit(130)
    except (EagleEdgeError, ValueError, OSError) as error:
        print(f"eagle-edge-convert: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
