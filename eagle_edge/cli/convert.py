"""``eagle-edge convert``: checkpoints to GGUF; the work is in the package ``eagle_edge_convert``."""

from __future__ import annotations

import typer

app = typer.Typer(help="Convert a checkpoint to GGUF.", no_args_is_help=True)
