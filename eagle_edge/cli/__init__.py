"""The command line: data to stdout, progress to stderr; exit codes 0, 1 (one line), 2 (usage), 130 (interrupted)."""

from __future__ import annotations

import importlib.metadata
import sys

import typer
from eagle_edge_convert.cli import app as convert
from eagle_edge_convert.cli import export, one_line

from ..errors import EagleEdgeError
from . import bench, chat, generate, inspect, train, verify

__all__ = ["app", "main"]

app = typer.Typer(
    name="eagle-edge",
    help="EAGLE speculative decoding for quantised GGUF models: the same text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("train", epilog=train.EPILOG)(train.train_command)
app.add_typer(convert, name="convert")
app.command("export")(export)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"eagle-edge {importlib.metadata.version('eagle-edge')}")
        raise typer.Exit


@app.callback()
def _common(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """EAGLE speculative decoding for quantised GGUF models: the same text, sooner."""
    global _debug
    _debug = debug


_debug = False


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        app(args=argv)
    except KeyboardInterrupt:
        sys.exit(130)
    except (EagleEdgeError, ValueError, OSError) as error:
        if _debug:
            raise
        print(f"eagle-edge: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
