"""The options that commands share, in groups: a parameter annotated with a group stands for all of its options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import DraftParams, SamplingParams, TargetParams
from ..models import default_head, default_target
from ..threads import physical_cores

__all__ = ["DraftOptions", "Json", "PairOptions", "SamplingOptions", "TargetOptions", "command", "read_file"]

Json = Annotated[bool, typer.Option("--json", help="Write one JSON value to stdout.")]


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Which model, and which head drafts for it."""

    target: Annotated[
        Path | None, typer.Option("--target", help="The model's GGUF file.", show_default="the packaged model")
    ] = None
    head: Annotated[
        Path | None, typer.Option("--head", help="The head's GGUF file.", show_default="the packaged head")
    ] = None

    def files(self) -> tuple[Path, Path | None]:
        """Target and head: the packaged pair, or a target of one's own with the head that is named, if any."""
        if self.target is None:
            return default_target(), self.head or default_head()
        return self.target, self.head


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """How the model is loaded."""

    n_ctx: Annotated[int, typer.Option("--n-ctx", help="Positions of text; 0 takes the model's own.")] = 4096
    n_gpu_layers: Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU; -1 all.")] = 0
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads.", show_default="physical cores")] = None
    kernels: Annotated[str, typer.Option("--kernels", help="CPU kernels: auto, native or llama.cpp.")] = "auto"
    exact: Annotated[
        str, typer.Option("--exact", help="auto, or strict: insist on rows that do not depend on the tree.")
    ] = "auto"

    def params(self) -> TargetParams:
        """The settings of the load."""
        if self.exact not in ("auto", "strict"):
            raise typer.BadParameter(f"--exact takes auto or strict, got {self.exact!r}")
        return TargetParams(
            n_ctx=self.n_ctx,
            n_gpu_layers=self.n_gpu_layers,
            n_threads=physical_cores() if self.threads is None else self.threads,
            kernels=self.kernels,  # type: ignore[arg-type]  # checked there
        )


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Which tree is drafted: in every round what pays best, unless a size is named."""

    no_draft: Annotated[bool, typer.Option("--no-draft", help="Decode plainly.")] = False
    chain: Annotated[int | None, typer.Option("--chain", help="Draft a chain of N tokens.", metavar="N")] = None
    tree: Annotated[
        str | None,
        typer.Option("--tree", help="Draft a tree of at most TOTAL nodes, root included.", metavar="TOTAL/DEPTH/TOPK"),
    ] = None

    def params(self) -> DraftParams:
        """The tree.

        Raises:
            typer.BadParameter: both are given, or the text is not TOTAL/DEPTH/TOPK.
            ValueError: no tree has these sizes.
        """
        if self.chain is not None and self.tree is not None:
            raise typer.BadParameter("--chain and --tree exclude each other")
        if self.no_draft or self.chain is not None:
            return DraftParams.chain(0 if self.no_draft else self.chain or 0)
        if self.tree is None:
            return DraftParams.auto()
        match = re.fullmatch(r"(\d+)/(\d+)/(\d+)", self.tree)
        if match is None:
            raise typer.BadParameter(f"--tree takes TOTAL/DEPTH/TOPK, for example 60/7/10, got {self.tree!r}")
        total, depth, top_k = map(int, match.groups())
        return DraftParams(total=total, depth=depth, top_k=top_k)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the most probable token.")] = 0.0
    top_k: Annotated[int, typer.Option("--top-k", help="Keep the k most probable tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the most probable tokens up to this probability.")] = 1.0
    min_p: Annotated[float, typer.Option("--min-p", help="Keep tokens this probable against the best.")] = 0.0
    seed: Annotated[int | None, typer.Option("--seed", help="One seed gives one text.", show_default="random")] = None

    def params(self, max_tokens: int | None, **more: Any) -> SamplingParams:
        """The settings of one generation; ``more`` are further fields of ``SamplingParams``."""
        return SamplingParams(max_tokens=max_tokens, **dataclasses.asdict(self), **more)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` as typer wants it: every parameter that is a group of options replaced by the options."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        options = typing.get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            parameters.append(
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=options[field.name]
                )
            )

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def read_file(path: Path | None) -> str | None:
    """The text of a file an option names, or None."""
    return None if path is None else path.read_text(encoding="utf-8")
