"""Runs a head's checkpoint in torch and its GGUF in the engine; started by ``head_proof.prove_head``.

Both read the same features: the target's own on a short text where it can be run, else random ones. Pairs of the text
come first, then two branches of a tree, three fed-back steps deep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.gguf_header import GgufHeader, read_header
from eagle_edge.head_format import HeadConfig
from eagle_edge.threads import physical_cores

from .config_values import ConfigValues
from .encode import Kind
from .layouts import canonical_tensors
from .read import Tensor, open_checkpoint
from .rope import rope_parameters
from .target import matrix_rows, read_target
from .vocabulary import read_draft_ids
from .write import copy_tokenizer

if TYPE_CHECKING:
    import torch

    from .head_reference import HeadReference

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

TEXT = (
    "<|im_start|>user\nWhat causes the seasons?<|im_end|>\n<|im_start|>assistant\n"
    "The seasons are caused by the tilt of the Earth's axis. As the Earth moves around the Sun, the northern half of "
    "the planet is tilted towards the Sun for a part of the year, and away from it for the rest of the year. When it "
    "is tilted towards the Sun, the days are longer and the light is stronger, so it is summer. When it is tilted "
    "away from the Sun, the days are shorter and it is winter.<|im_end|>\n"
)
N_PAIRS = 96
N_RANDOM_PAIRS = 24
N_STEPS = 3


@dataclass(frozen=True)
class Features:
    """What a head reads: ``tokens`` [n] the token after each position, ``taps`` [n, K*E]; what it should guess."""

    tokens: Int32
    taps: Float32
    best: Int32 | None = None  # [n] the target's best token after each of ``tokens``


class Weights(Mapping[str, "torch.Tensor"]):
    """A checkpoint's tensors for torch, read when they are asked for."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch

        tensor = self.tensors[name]
        if tensor.dtype in ("float16", "bfloat16"):  # torch widens them several times faster than numpy
            return torch.from_numpy(np.array(tensor.load()).view(np.int16)).view(getattr(torch, tensor.dtype)).float()
        return torch.from_numpy(tensor.read())

    def __contains__(self, name: object) -> bool:
        return name in self.tensors  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Compare as ``job`` says."""
    try:
        import torch
    except ImportError:
        return {"skipped": "torch is not installed (pip install 'eagle-edge[convert]')"}
    header = read_header(job["file"])
    config = HeadConfig.from_metadata(header)
    target, because = Path(job["target"]), job["random_because"]
    features = None
    if not because:
        try:
            features = real_features(target, config)
        except EagleEdgeError as error:
            because = f"the target does not run: {error}"
    if features is None:
        features = random_features(config)
        target = write_stand_in(header, config, features.tokens)
    with torch.inference_mode():
        oracle, ids = reference(Path(job["checkpoint"]), header, config, read_header(target))
        mine, theirs = compare(header.path, target, features, oracle, ids)
    n = len(features.tokens)
    shifted = mine - theirs
    shifted -= shifted.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean((theirs - theirs.mean(axis=1, keepdims=True)) ** 2))
    guesses = ids[mine[:n].argmax(axis=1)]
    return {
        "n_pairs": n,
        "n_nodes": len(mine) - n,
        "max_difference": float(np.abs(shifted).max()),
        "relative_error": float(np.sqrt(np.mean(shifted**2)) / max(spread, 1e-9)),
        "top1_agreement": float((mine.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        "random_because": because,
        "n_hits": None if features.best is None else int((guesses == features.best).sum()),
    }


def real_features(path: Path, config: HeadConfig) -> Features:
    """The target's own taps and best tokens on ``TEXT``.

    Raises:
        EagleEdgeError: llama.cpp cannot run the target.
    """
    from eagle_edge.config import TargetParams
    from eagle_edge.target import Target
    from eagle_edge.tree import chain

    params = TargetParams(n_ctx=256, n_batch=128, max_nodes=N_PAIRS + 1, repack=False)
    with Target(path, params) as target:
        target.set_taps(config.taps)
        ids = target.tokenize(TEXT, parse_special=True)[: N_PAIRS + 1]
        evaluation = target.eval_tree(chain(ids[0], np.array(ids[1:], np.int32)))
        n = len(ids) - 1
        taps = evaluation.taps(range(n))
        best = [int(evaluation.logits(row).argmax()) for row in range(1, n + 1)]
    return Features(np.array(ids[1:], np.int32), taps, np.array(best, np.int32))


def random_features(config: HeadConfig) -> Features:
    """Random tokens and normally distributed taps, the same ones every time."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.n_vocab, N_RANDOM_PAIRS).astype(np.int32)
    width = len(config.taps) * config.n_embd_target
    return Features(tokens, rng.standard_normal((N_RANDOM_PAIRS, width), np.float32))


def write_stand_in(head: GgufHeader, config: HeadConfig, tokens: Int32) -> Path:
    """A target to borrow from, a sparse file in this folder: random rows where they are read, and zeros elsewhere."""
    path = Path("stand-in.gguf").resolve()
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_embedding_length(config.n_embd_target)
    writer.add_block_count(max(1, *config.taps))
    copy_tokenizer(writer, head.path)
    rows: dict[str, npt.NDArray[Any]] = {
        "token_embd.weight": np.unique(tokens),
        "output.weight": np.arange(0, config.n_vocab, 97),
    }
    rows = {name: ids for name, ids in rows.items() if name not in head.tensors}  # what the head lacks
    shape = (config.n_vocab, config.n_embd_target)
    n_bytes = 4 * shape[0] * shape[1]
    for name in rows:
        writer.add_tensor_info(name, shape, np.dtype(np.float32), n_bytes, Kind.F32)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    alignment = writer.data_alignment
    start = -(-path.stat().st_size // alignment) * alignment
    stride = -(-n_bytes // alignment) * alignment
    with path.open("rb+") as file:
        file.truncate(start + stride * max(len(rows), 1))
    rng = np.random.default_rng(1)
    for index, ids in enumerate(rows.values()):
        matrix = np.memmap(path, np.float32, "r+", start + index * stride, shape)
        matrix[ids] = rng.standard_normal((len(ids), shape[1]), np.float32)
    return path


def reference(
    checkpoint: Path, head: GgufHeader, config: HeadConfig, target: GgufHeader
) -> tuple[HeadReference, npt.NDArray[np.int64]]:
    """The checkpoint in torch, with what the file borrows from the target; and [R] the target id of each draft id."""
    import torch

    from .head_reference import HeadReference, Maths

    values, facts = ConfigValues(open_checkpoint(checkpoint)), read_target(target.path)
    weights = Weights(canonical_tensors(values.checkpoint))
    ids = read_draft_ids(values, weights.tensors, facts, [])
    ids = np.arange(config.n_vocab) if ids is None else ids

    def embedding(tokens: torch.Tensor) -> torch.Tensor:
        if "token_embd.weight" in head.tensors:
            own = weights.tensors["embed_tokens.weight"]
            return torch.from_numpy(own.decode(own.load()[tokens.numpy()]))
        borrowed = matrix_rows(target, "token_embd.weight")
        assert borrowed is not None
        return torch.from_numpy(borrowed(tokens.numpy()))

    def output() -> torch.Tensor:
        if "output.weight" in head.tensors:
            name = "lm_head.weight" if "lm_head.weight" in weights else "embed_tokens.weight"
            return weights[name][: config.n_draft_vocab]
        borrowed = matrix_rows(target, "output.weight") or matrix_rows(target, "token_embd.weight")
        assert borrowed is not None
        return torch.from_numpy(borrowed(ids))

    maths = Maths.of(config, rope_parameters(values) if config.rope_factors else None)
    return HeadReference(maths, weights, embedding, output, torch.float32), ids


def compare(
    head: Path, target: Path, features: Features, oracle: HeadReference, ids: npt.NDArray[np.int64]
) -> tuple[Float32, Float32]:
    """[n + nodes, R] logits of the engine and of torch: the pairs in order, then the nodes in order.

    Two branches grow under the last pair: node 2 * step + b lies under the one two before it. Torch is done before the
    engine begins, so that only one of them has weights in memory.
    """
    nodes = features.tokens[: 2 * N_STEPS].reshape(N_STEPS, 2)
    theirs = _by_torch(oracle, features, nodes)
    return _by_engine(head, target, features, nodes, ids), theirs


def _by_torch(oracle: HeadReference, features: Features, nodes: Int32) -> Float32:
    import torch

    n = len(features.tokens)
    tokens, taps = torch.from_numpy(features.tokens).long(), torch.from_numpy(features.taps)
    logits, states = oracle.add(tokens, torch.arange(n), torch.ones(n, n, dtype=torch.bool).tril(), taps=taps)
    out = [logits.numpy()]
    states, visible = states[-1:].repeat(2, 1), torch.ones(2, n, dtype=torch.bool)
    for step, level in enumerate(nodes):
        visible = torch.cat([visible, torch.eye(2, dtype=torch.bool)], dim=1)
        logits, states = oracle.add(torch.from_numpy(level).long(), torch.full((2,), n + step), visible, states=states)
        out.append(logits.numpy())
    return np.concatenate(out)


def _by_engine(head: Path, target: Path, features: Features, nodes: Int32, ids: npt.NDArray[np.int64]) -> Float32:
    from eagle_edge.config import DraftParams
    from eagle_edge.draft import Draft
    from eagle_edge.kernels import choose_kernels

    choose_kernels()
    out, params = [], DraftParams(1 + nodes.size, len(nodes), 2)
    n_ctx = len(features.tokens) + 16
    with Draft(head, target, n_ctx=n_ctx, n_threads=physical_cores(), params=params) as draft:
        if draft.vocab.tolist() != ids.tolist():
            raise FileFormatError(f"{head}: drafts other tokens than the checkpoint")
        for row in range(len(features.tokens)):
            draft.extend(features.tokens[row : row + 1], features.taps[row : row + 1])
            out.append(draft.logits(-1))
        for step, level in enumerate(nodes):
            parents = np.arange(2, dtype=np.int32) + 2 * step - 2 if step else np.full(2, -1, np.int32)
            draft.level(level, parents, 1)
            out += [draft.logits(2 * step), draft.logits(2 * step + 1)]
    return np.stack(out)


if __name__ == "__main__":
    _job = json.loads(sys.argv[1])
    try:
        _answer = run(_job)
    except Exception as _error:  # whatever happens becomes one line
        _text = " ".join(str(_error).split())[:400]
        _answer = {"error": _text if isinstance(_error, EagleEdgeError) else f"{type(_error).__name__}: {_text}"}
    Path(_job["answer"]).write_text(json.dumps(_answer))
