"""The options that commands share, and the engine they describe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..config import DraftParams, SamplingParams, TargetParams
from ..models import default_head, default_target
from ..threads import physical_cores

Target = Annotated[
    Path | None, typer.Option("--target", help="The model's GGUF file.", show_default="the packaged model")
]
Head = Annotated[Path | None, typer.Option("--head", help="The head's GGUF file.", show_default="the packaged head")]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Decode plainly.")]
Chain = Annotated[int | None, typer.Option("--chain", help="Draft a chain of N tokens.", metavar="N")]
TreeOption = Annotated[
    str | None,
    typer.Option("--tree", help="Draft a tree of at most TOTAL nodes, root included.", metavar="TOTAL/DEPTH/TOPK"),
]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most probable token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k most probable tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the most probable tokens up to this probability.")]
MinP = Annotated[float, typer.Option("--min-p", help="Keep tokens at least this probable against the best.")]
Seed = Annotated[int | None, typer.Option("--seed", help="One seed gives one text.", show_default="random")]
NCtx = Annotated[int, typer.Option("--n-ctx", help="Positions of text; 0 takes the model's own.")]
NGpuLayers = Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU; -1 all.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads.", show_default="physical cores")]
Exact = Annotated[str, typer.Option("--exact", help="auto, or strict: insist on rows that do not depend on the tree.")]
Kernels = Annotated[str, typer.Option("--kernels", help="CPU kernels: auto, native or llama.cpp.")]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON value to stdout.")]


@dataclass(frozen=True, slots=True)
class Pair:
    """A target's file, and the head's or None."""

    target: Path
    head: Path | None


def find_pair(target: Path | None, head: Path | None, no_draft: bool = False) -> Pair:
    """The files two options mean: the packaged pair, or a target of one's own, with the head that is named, if any."""
    if target is None:
        return Pair(default_target(), None if no_draft else head or default_head())
    return Pair(target, None if no_draft else head)


def draft_params(chain: int | None, tree: str | None) -> DraftParams:
    """The tree two options mean.

    Raises:
        typer.BadParameter: both are given, or the text is not TOTAL/DEPTH/TOPK.
    """
    if chain is not None and tree is not None:
        raise typer.BadParameter("--chain and --tree exclude each other")
    if chain is not None:
        return DraftParams.chain(chain)
    if tree is None:
        return DraftParams()
    match = re.fullmatch(r"(\d+)/(\d+)/(\d+)", tree)
    if match is None:
        raise typer.BadParameter(f"--tree takes TOTAL/DEPTH/TOPK, for example 60/7/10, got {tree!r}")
    total, depth, top_k = map(int, match.groups())
    return DraftParams(total=total, depth=depth, top_k=top_k)


def target_params(n_ctx: int, n_gpu_layers: int, threads: int | None, kernels: str) -> TargetParams:
    """How to load the target that the options name."""
    n_threads = physical_cores() if threads is None else threads
    return TargetParams(n_ctx=n_ctx, n_gpu_layers=n_gpu_layers, n_threads=n_threads, kernels=kernels)  # type: ignore[arg-type]


def sampling_params(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    max_tokens: int | None,
    stop: Sequence[str] = (),
    grammar: str | None = None,
    json_schema: str | None = None,
) -> SamplingParams:
    """How tokens are chosen, as the options say."""
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop),
        grammar=grammar,
        json_schema=json_schema,
    )


def read_file(path: Path | None) -> str | None:
    """The text of a file an option names, or None."""
    return None if path is None else path.read_text(encoding="utf-8")
