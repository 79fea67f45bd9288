"""The command line: thin. Data goes to stdout, progress to stderr; exit codes 0, 1 (one line), 2 usage, 130 interrupted."""

from __future__ import annotations

import sys

import click
import typer

from eagle_edge_convert.cli import app as convert

from ..errors import EagleEdgeError
from . import bench, chat, generate, inspect, verify

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
app.add_typer(convert, name="convert")


@app.callback()
def _common(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """EAGLE speculative decoding for quantised GGUF models: the same text, sooner."""
    global _debug
    _debug = debug


_debug = False


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        status = app(args=argv, standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print(file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except (EagleEdgeError, ValueError, OSError) as error:
        if _debug:
            raise
        print(f"eagle-edge: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
