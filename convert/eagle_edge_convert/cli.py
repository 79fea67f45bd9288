"""The converters' command line; it parses and prints, the work is in ``convert_head``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from eagle_edge.errors import EagleEdgeError

__all__ = ["app", "main"]

app = typer.Typer(help="Convert a checkpoint to GGUF.", no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None:
    """Convert a checkpoint to GGUF."""


@app.command("head")
def head(
    checkpoint: Annotated[Path, typer.Argument(help="Folder with config.json and the tensors (SafeAILab, SpecForge).")],
    target: Annotated[Path, typer.Option("--target", help="The GGUF the head drafts for.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF to write.")],
    quantize: Annotated[str, typer.Option("--quantize", help="f32, f16, bf16, q8_0 or q4_0.")] = "f16",
    tap_layers: Annotated[str | None, typer.Option("--tap-layers", help="Boundaries, for example 2,15,27.")] = None,
    rope_theta: Annotated[float | None, typer.Option("--rope-theta", help="The base it was trained with.")] = None,
    norm_before_residual: Annotated[bool | None, typer.Option(help="The residual is the normed feature.")] = None,
    norm_before_fc: Annotated[bool | None, typer.Option(help="One norm over all taps before fc.")] = None,
) -> None:
    """Convert a draft head."""
    from .head import HeadOverrides, convert_head  # gguf takes a moment to load

    overrides = HeadOverrides(_taps(tap_layers), rope_theta, norm_before_residual, norm_before_fc)
    result = convert_head(checkpoint, target, output, quantize, overrides)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if result.dropped:
        print(f"left out on purpose: {', '.join(result.dropped)}", file=sys.stderr)
    config = result.config
    print(
        f"{result.path}: {result.n_bytes / 1e6:.1f} MB, architecture {config.architecture}, taps {list(config.taps)}, "
        f"{config.n_embd} wide, draft vocabulary {config.n_draft_vocab} of {config.n_vocab}"
    )


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--tap-layers takes numbers separated by commas, got {text!r}") from None


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        app(args=argv)
    except KeyboardInterrupt:
        sys.exit(130)
    except (EagleEdgeError, ValueError, OSError) as error:
        print(f"eagle-edge-convert: {error}", file=sys.stderr)
        sys.exit(1)
