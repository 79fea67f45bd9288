"""``eagle-edge generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from .session import open_session

EXAMPLES = """
Examples:

  eagle-edge generate -p "Why is the sky blue?"

  eagle-edge generate -p "def fib(n):" --raw -n 200 --temperature 0.8 --seed 1

  echo "Summarise: ..." | eagle-edge generate -p - --json
"""


@o.command
def generate(
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="The prompt; - reads it from standard input.")],
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="The most tokens to generate.")] = 512,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the text before this string; repeatable.")
    ] = None,
    grammar: Annotated[Path | None, typer.Option("--grammar", help="A GBNF file the text must follow.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option("--json-schema", help="A JSON schema file the text must follow.")
    ] = None,
    *,
    pair: o.PairOptions,
    loading: o.TargetOptions,
    drafting: o.DraftOptions,
    sampling: o.SamplingOptions,
    as_json: o.Json = False,
) -> None:
    """Answer one prompt; the text goes to standard output as it comes."""
    text = sys.stdin.read() if prompt == "-" else prompt
    constraint = {"grammar": o.read_file(grammar), "json_schema": o.read_file(json_schema)}
    params = sampling.params(max_tokens, stop=tuple(stop or ()), **constraint)
    with open_session(pair, loading, drafting) as session:
        messages = [{"role": "system", "content": system}] if system is not None else []
        ids = session.raw(text) if raw else session.encode([*messages, {"role": "user", "content": text}])
        pieces: list[str] = []
        tokens: list[int] = []
        reason = "stop"
        for step in session.engine.generate(ids, params):
            pieces.append(step.text)
            tokens += step.token_ids
            reason = step.finish_reason or reason
            if not as_json:
                print(step.text, end="", flush=True)
        stats = session.engine.stats
        if as_json:
            head_lines = {"text": "".join(pieces), "token_ids": tokens, "finish_reason": reason}
            print(json.dumps({**head_lines, **stats.as_dict(), "exact": session.exact}, ensure_ascii=False))
        else:
            print()
            print(session.summary(stats), file=sys.stderr)
