"""One command from a GGUF to a head: prompts, answers with features, vocabulary, training, export, conversion, card.

Every stage leaves its result in the run's folder and is skipped or continued when it is there, so that the same command
takes up a run that was interrupted anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from eagle_edge_convert import convert_head

from ..config import TargetParams
from ..errors import EagleEdgeError
from ..head_format import HeadConfig
from ..target import Target
from ..template import ChatTemplate
from .answers import Recorder, finished_shards, stream_context
from .card import write_card
from .export import export_checkpoint
from .loop import Report, Trainer
from .model import Head
from .params import TrainParams
from .plots import write_plots
from .shards import Corpus, bytes_per_token, from_bf16
from .start import initialise, tap_sizes
from .target_weights import TargetWeights, read_target_weights
from .vocabulary import Vocabulary, choose

__all__ = ["Progress", "train"]

# The most that the caches of all streams may take; large targets get fewer streams.
STREAM_CACHE_BYTES = 2 << 30


class Progress(Protocol):
    """Hears how far a run is."""

    def stage(self, name: str, done: float, text: str) -> None:
        """``done`` (0..1) of the stage ``name`` is behind; ``text`` says more."""

    def report(self, report: Report) -> None:
        """The training loop has something to show."""


def train(params: TrainParams, progress: Progress) -> Path:
    """Run or continue the run in ``params.output`` and return the head's GGUF.

    Raises:
        FileFormatError: the target or a prompt file cannot be read.
        PairError: no head can be trained for this target.
        EagleEdgeError: the folder holds another run, the disk is too small, or there is too little data.
    """
    weights = read_target_weights(Path(params.target))
    folder = Path(params.output)
    folder.mkdir(parents=True, exist_ok=True)
    params = _claim(params, folder)
    torch.set_num_threads(params.loop.n_threads or os.cpu_count() or 1)
    taps = params.head.taps or (2, weights.n_layer // 2, weights.n_layer - 3)
    _record(params, taps, weights, folder, progress)
    corpus = Corpus(finished_shards(folder / "shards"))
    vocabulary = _vocabulary(params, corpus, weights, folder)
    progress.stage("vocabulary", 1.0, f"{len(vocabulary.ids)} tokens cover {vocabulary.coverage:.1%} of the answers")
    head = Head(head_config(params, taps, weights, len(vocabulary.ids)), weights.embedding)
    sample = np.concatenate([from_bf16(corpus[i].taps) for i in range(min(16, len(corpus)))])
    initialise(head, vocabulary, weights, tap_sizes(sample, len(taps)), params.seed)
    trainer = Trainer(head.to(_device()), corpus, vocabulary, params.loop, params.seed, folder)
    trainer.run(progress.report)
    progress.stage("export", 0.0, "checkpoint, GGUF, card")
    export_checkpoint(head, vocabulary, folder / "head")
    gguf_path = folder / "head-q8_0.gguf"
    convert_head(folder / "head", params.target, gguf_path, "q8_0", check=False)
    write_plots(folder)
    write_card(folder, params, head.config, vocabulary, corpus, trainer)
    progress.stage("export", 1.0, str(gguf_path))
    return gguf_path


def head_config(params: TrainParams, taps: tuple[int, ...], target: TargetWeights, n_draft_vocab: int) -> HeadConfig:
    """The head that ``params`` describe for ``target``."""
    chosen = params.head
    return HeadConfig(
        taps=taps,
        n_embd=target.n_embd,
        n_embd_target=target.n_embd,
        n_ff=chosen.n_ff or target.n_ff,
        n_head=chosen.n_head or target.n_head,
        n_head_kv=chosen.n_head_kv or target.n_head_kv,
        head_dim=target.head_dim,
        n_vocab=target.n_vocab,
        n_draft_vocab=n_draft_vocab,
        n_ctx=2048,
        rms_eps=target.rms_eps,
        rope_theta=target.rope_theta,
        norm_before_residual=chosen.norm_before_residual,
        norm_before_fc=chosen.norm_before_fc,
        fc_norm=chosen.fc_norm,
        norm_output=chosen.norm_output,
    )


def _claim(params: TrainParams, folder: Path) -> TrainParams:
    """Mark the folder as this run's and give its settings; refuse a run with other data or another head.

    More answers and another schedule continue a run. Its rounds keep their size, which their contents follow from.
    """
    path = folder / "params.json"
    if path.exists():
        before = TrainParams.load(path)
        data = dataclasses.replace(params.data, prompts_per_round=before.data.prompts_per_round)
        params = dataclasses.replace(params, data=data)
        data = dataclasses.replace(before.data, answer_tokens=data.answer_tokens)
        expected = dataclasses.replace(before, output=params.output, loop=params.loop, data=data)
        names = [f.name for f in dataclasses.fields(params) if getattr(params, f.name) != getattr(expected, f.name)]
        if names:
            raise EagleEdgeError(
                f"{folder}: holds a run with another {', '.join(names)}; name another folder or delete it"
            )
    params.save(path)
    return params


def _record(
    params: TrainParams, taps: tuple[int, ...], weights: TargetWeights, folder: Path, progress: Progress
) -> None:
    """Have the target answer until there is enough."""
    data = params.data
    shards = folder / "shards"
    have = Corpus(finished_shards(shards)).n_answer_tokens()
    if have >= data.answer_tokens:
        return
    per_token = bytes_per_token(len(taps) * weights.n_embd, data.n_likely)
    # Prompts are stored too; they are about half as long as the answers.
    needed, free = int(1.6 * per_token * (data.answer_tokens - have)), shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise EagleEdgeError(f"{folder}: the features need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
    progress.stage("answers", have / data.answer_tokens, f"{needed / 1e9:.1f} GB of features to write")
    n_streams = min(data.n_streams, max(1, STREAM_CACHE_BYTES // (stream_context(data) * _cache_bytes(weights))))
    settings = TargetParams(n_ctx=stream_context(data), n_batch=512, max_nodes=n_streams, streams=True)
    with Target(params.target, settings) as target:
        recorder = Recorder(target, ChatTemplate.of(target), taps, data, params.seed, folder)

        def on_tokens(n: int) -> None:
            progress.stage("answers", min(1.0, n / data.answer_tokens), f"{n} of {data.answer_tokens} answer tokens")

        recorder.run(on_tokens)


def _cache_bytes(weights: TargetWeights) -> int:
    """Bytes of one position in a stream's cache: float16 keys and values of all layers."""
    return weights.n_layer * weights.n_head_kv * weights.head_dim * 2 * 2


def _vocabulary(params: TrainParams, corpus: Corpus, target: TargetWeights, folder: Path) -> Vocabulary:
    """The draft vocabulary, chosen once."""
    path = folder / "vocabulary.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Vocabulary(np.array(stored["ids"], np.int64), target.n_vocab, stored["coverage"])
    out = choose(corpus.counts(target.n_vocab), min(params.head.n_draft_vocab, target.n_vocab))
    path.write_text(json.dumps({"coverage": out.coverage, "ids": out.ids.tolist()}), encoding="utf-8")
    return out


def _device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
