"""``eagle-edge inspect``: what a target and a head are, whether they fit, and what running them takes here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ..draft import Draft
from ..errors import PairError
from ..exactness import open_exact
from ..gguf_header import GgufHeader, read_header
from ..head_format import HeadConfig
from ..pair import pair_differences
from . import options as o


@o.command
def inspect(
    load: Annotated[bool, typer.Option("--load/--no-load", help="Also load the pair and measure.")] = True,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    as_json: o.Json = False,
) -> None:
    """Describe a pair and say whether it fits. Exit code 1 when it does not."""
    target, head = pair.files()
    report: dict[str, Any] = {"target": describe_target(read_header(target))}
    if head is not None:
        report["head"], report["differences"] = describe_pair(head, target)
        report["fits"] = not report["differences"]
    if load and report.get("fits", True):
        report["here"] = measure(target, head, loading)
    if as_json:
        print(json.dumps(report))
    else:
        for part, values in report.items():
            _print_part(part, values)
    if not report.get("fits", True):
        raise typer.Exit(1)


def describe_target(header: GgufHeader) -> dict[str, Any]:
    """What the target's header says."""
    arch = header.architecture
    types = Counter(info.type_name for info in header.tensors.values())
    return {
        "file": str(header.path),
        "architecture": arch,
        "name": header.get("general.name", str, ""),
        "layers": header.get(f"{arch}.block_count", int),
        "width": header.get(f"{arch}.embedding_length", int),
        "context": header.get(f"{arch}.context_length", int, 0),
        "vocabulary": len(header.strings("tokenizer.ggml.tokens") or []),
        "tensor_types": dict(types.most_common()),
        "bytes": Path(header.path).stat().st_size,
    }


def describe_pair(head: Path, target: Path) -> tuple[dict[str, Any], list[str]]:
    """What the head's header says, and why it does not fit the target."""
    header, differences = read_header(head), []
    try:
        differences = pair_differences(header, read_header(target))
        if differences and header.architecture not in ("eagle", "eagle3"):
            return {"file": str(head)}, differences
        config = HeadConfig.from_metadata(header)
    except PairError as error:
        return {"file": str(head)}, [str(error)]
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")
    return {
        "file": str(head),
        "kind": config.kind,
        "runs_in_llama_server": config.architecture == "eagle3",
        "tap_layers": list(config.taps),
        "width": config.n_embd,
        "draft_vocabulary": config.n_draft_vocab,
        "own_embedding": "token_embd.weight" in header.tensors,
        "own_output": "output.weight" in header.tensors,
        "flags": [flag for flag in flags if getattr(config, flag)],
        "bytes": head.stat().st_size,
    }, differences


def measure(target_path: Path, head: Path | None, loading: o.TargetOptions) -> dict[str, Any]:
    """Memory and exactness of the loaded pair."""
    params = loading.params()
    target, found = open_exact(target_path, params, loading.exact)  # type: ignore[arg-type]  # checked there
    with target:
        here: dict[str, Any] = {
            "exact": found.rows_equal,
            "exactness": str(found),
            "threads": params.n_threads,
            "model_bytes": target.model_bytes,
            "cache_bytes": target.cache_bytes,
            "taps": "layer inputs" if target.layer_input_taps else "callback",
        }
        if head is not None:
            with Draft(head, target_path, n_ctx=target.n_ctx, n_threads=params.n_threads) as draft:
                here["head_bytes"] = draft.weight_bytes + draft.cache_bytes
        return here


def _print_part(part: str, values: Any) -> None:
    if part == "fits":
        print("fits:", "yes" if values else "no")
    elif isinstance(values, dict):
        print(f"{part}:")
        for name, value in values.items():
            print(f"  {name.replace('_', ' ')}: {_text(name, value)}")
    else:
        for value in values:
            print(f"  {value}")


def _text(name: str, value: Any) -> str:
    if name.endswith("bytes"):
        return f"{value / 2**20:.1f} MiB"
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
