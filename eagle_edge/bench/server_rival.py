"""Any server that speaks OpenAI's chat completions, timed from outside; tokens are counted from its usage."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from ..config import SamplingParams
from ..errors import NativeError
from .runs import Prompt, Run, Watch

__all__ = ["ServerRival"]

_TIMEOUT_S = 600


class ServerRival:
    """A model behind an address.

    Args:
        address: ``http://host:port``, with or without ``/v1``; ``name=http://...`` names it in the table.

    Raises:
        NativeError: nobody answers there.
    """

    def __init__(self, address: str) -> None:
        name, named, url = address.partition("=http")
        self.name, url = (name, f"http{url}") if named else (address, address)
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        with self._open("/models", None) as reply:
            models = json.load(reply).get("data") or [{}]
        self._model = models[0].get("id", "default")

    def answer(self, prompt: Prompt, params: SamplingParams) -> Run:
        """Generate; ``cache_prompt`` asks a llama-server for empty caches, others do not know it."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": params.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": False,
        }
        watch = Watch()
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        with self._open("/chat/completions", body) as reply:
            for event in _events(reply):
                usage, timings = event.get("usage") or usage, event.get("timings") or timings
                for choice in event.get("choices", ()):
                    piece = choice.get("delta", {}).get("content")
                    if piece or choice.get("finish_reason"):
                        watch.deliver(1 if piece else 0, piece or "")
        if "completion_tokens" not in usage:
            raise NativeError(f"{self.name} sends no usage, so its tokens cannot be counted")
        return _counted(watch.run, int(usage["completion_tokens"]), timings)

    def close(self) -> None:
        """Nothing is held open between two answers."""

    def _open(self, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        try:
            reply: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            message = error.read(300).decode(errors="replace")
            raise NativeError(f"{self.name} answered {error.code}: {message}") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise NativeError(f"{self.name}: no server answers there ({getattr(error, 'reason', error)})") from None
        return reply


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The server-sent events, up to [DONE]."""
    for line in reply:
        field, _, value = line.decode().strip().partition(":")
        if field == "data" and value.strip() != "[DONE]":
            event = json.loads(value)
            if "error" in event:
                raise NativeError(f"the server failed: {event['error']}")
            yield event


def _counted(run: Run, n_tokens: int, timings: dict[str, Any]) -> Run:
    """``run`` with what the server says it generated and, if it is a llama-server, drafted."""
    run.n_tokens = n_tokens
    run.draft_n, run.draft_n_accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
    run.rounds = n_tokens - run.draft_n_accepted
    return run
