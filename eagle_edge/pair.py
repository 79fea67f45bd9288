"""Does this head fit this target? Answered from the two headers, before any native code sees the files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from .errors import FileFormatError, PairError
from .gguf_header import GgufHeader, TensorInfo, printable
from .head_format import HeadConfig

__all__ = ["check_pair", "check_tensors", "pair_differences", "read_draft_vocab"]

_I64 = 27
_UNUSED_TOKEN = 5  # tokenizer.ggml.token_type of padding
_ONLY_INTEGERS = {24, 25, 26, _I64, 28}  # I8..I64 and F64: no weights


def check_pair(head: GgufHeader, target: GgufHeader) -> None:
    """Pass when the head can draft for the target.

    Raises:
        FileFormatError: the head's own file is not a whole, sane head.
        PairError: the two do not fit; the message is the first difference.
    """
    for difference in pair_differences(head, target):
        raise PairError(printable(difference))


def pair_differences(head: GgufHeader, target: GgufHeader) -> list[str]:
    """Why the head cannot draft for the target: one sentence each, empty when it can.

    Raises:
        FileFormatError: the head's own file is not a whole, sane head.
    """
    if target.architecture in ("eagle", "eagle3"):
        return [f"{target.path} is a draft head, not a target; give it as the head"]
    if head.architecture not in ("eagle", "eagle3"):
        kind = "the target itself" if head.path == target.path else f"a {head.architecture} model"
        return [f"{head.path} is {kind}, not a draft head; give a head made for {target.path}"]
    config = HeadConfig.from_metadata(head)
    check_tensors(config, head)
    vocab = read_draft_vocab(config, head)
    return [*_shape_differences(config, head, target), *_vocab_differences(config, vocab, head, target)]


def check_tensors(config: HeadConfig, head: GgufHeader) -> None:
    """Pass when the file holds every tensor of ``config`` in its shape and no other.

    Raises:
        FileFormatError: a tensor is missing, has another shape, is unknown, or is stored as integers.
    """
    wanted = config.tensors()
    optional = {"token_embd.weight": config.n_embd, "output.weight": config.n_embd, "d2t": config.n_draft_vocab}
    for name, shape in wanted.items():
        found = head.tensors.get(name)
        if found is None:
            head.fail(f"the tensor {name} is missing")
        if found.shape != shape:
            head.fail(f"the tensor {name} has shape {list(found.shape)}, expected {list(shape)}")
    for name, found in head.tensors.items():
        if name not in wanted and name not in optional:
            head.fail(f"the tensor {name} does not belong to this head")
        if name != "d2t" and found.type in _ONLY_INTEGERS:
            head.fail(f"the tensor {name} is stored as {found.type_name}, which holds no weights")
    embedding, output = head.tensors.get("token_embd.weight"), head.tensors.get("output.weight")
    if embedding and (len(embedding.shape) != 2 or embedding.shape[0] != config.n_embd):
        head.fail(
            f"the tensor token_embd.weight has shape {list(embedding.shape)}, its rows must be {config.n_embd} wide"
        )
    if output and output.shape != (config.n_embd, config.n_draft_vocab):
        expected = [config.n_embd, config.n_draft_vocab]
        head.fail(f"the tensor output.weight has shape {list(output.shape)}, expected {expected}")


def read_draft_vocab(config: HeadConfig, head: GgufHeader) -> Sequence[int]:
    """[R] the target id of each draft id.

    Raises:
        FileFormatError: d2t is of another type, or names a token twice or one that does not exist.
    """
    info = head.tensors.get("d2t")
    if info is None:
        return range(config.n_draft_vocab)
    if info.type != _I64:
        head.fail(f"the tensor d2t is stored as {info.type_name}, it must be I64; convert the head again")
    ids = array("q")
    ids.frombytes(_read(head, info))
    seen: dict[int, int] = {}
    for draft_id, token in enumerate(ids):
        if not 0 <= token < config.n_vocab:
            head.fail(f"d2t[{draft_id}] is {token}, outside the vocabulary of {config.n_vocab}; convert the head again")
        if token in seen:
            head.fail(f"d2t[{draft_id}] and d2t[{seen[token]}] are both {token}; convert the head again")
        seen[token] = draft_id
    return ids


def _read(head: GgufHeader, info: TensorInfo) -> bytes:
    try:
        with head.path.open("rb") as file:
            file.seek(info.offset)
            return file.read(info.n_bytes)
    except OSError as error:
        raise FileFormatError(f"{head.path}: cannot be read: {error.strerror or error}") from None


def _shape_differences(config: HeadConfig, head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    arch = target.architecture
    width, n_layer = target.get(f"{arch}.embedding_length", int), target.get(f"{arch}.block_count", int)
    if config.n_embd_target != width:
        yield f"the head reads hidden states {config.n_embd_target} wide, the target's are {width}: another target"
    for tap in config.taps:
        if tap > n_layer:
            yield f"the head taps layer {tap}, the target has {n_layer}: it is for another target"
    if len(set(config.taps)) != len(config.taps):
        yield f"the head taps a layer twice: {list(config.taps)}"
    for name in ("token_embd.weight", "output.weight"):
        if name not in head.tensors and config.n_embd != width:
            yield f"the head is {config.n_embd} wide and lacks {name}; it cannot borrow the target's, {width} wide"
    if "token_embd.weight" not in head.tensors and "token_embd.weight" not in target.tensors:
        yield f"the head lacks token_embd.weight and so does {target.path}"


def _vocab_differences(config: HeadConfig, vocab: Sequence[int], head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    theirs, ours = target.strings("tokenizer.ggml.tokens"), head.strings("tokenizer.ggml.tokens")
    if theirs is None:
        yield f"{target.path} has no tokenizer"
        return
    if max(vocab) >= len(theirs):
        yield f"the head drafts token {max(vocab)}, the target's vocabulary has {len(theirs)}: it is for another target"
    if config.n_vocab < len(theirs) and not _is_padding(target, config.n_vocab):
        yield f"the head knows {config.n_vocab} tokens, the target has {len(theirs)}: it is for another target"
    for token, (mine, yours) in enumerate(zip(ours or (), theirs, strict=False)):
        if mine != yours:
            yield f"token {token} is {mine!r} for the head and {yours!r} for the target: another tokenizer"
            return
    embedding = head.tensors.get("token_embd.weight")
    if embedding and embedding.shape[1] < min(config.n_vocab, len(theirs)):
        yield f"the head's token_embd.weight has {embedding.shape[1]} rows for {config.n_vocab} tokens"


def _is_padding(target: GgufHeader, start: int) -> bool:
    """Whether every token of the target from ``start`` on is marked as unused."""
    if "tokenizer.ggml.token_type" not in target.metadata:
        return False
    return all(kind == _UNUSED_TOKEN for kind in target.integers("tokenizer.ggml.token_type")[start:])
