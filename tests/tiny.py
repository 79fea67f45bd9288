"""Tiny random GGUF files with fixed seeds: a Llama-shaped target, a recurrent one, and EAGLE heads for them.

The target: 6 layers, 64 wide, 4 heads of 16, byte-level BPE vocabulary of 320 with ChatML markers, context 512.
The head: EAGLE-3 over 3 taps, one layer, reduced vocabulary 128; any ``HeadConfig`` switch can be set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from eagle_edge.head_format import HeadConfig

Array = npt.NDArray[Any]

N_VOCAB = 320
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
BOS, EOS = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Left to right in order of priority; Ġ is the byte-level spelling of a space.
MERGES = (  # noqa: SIM905  62 strings read better as one
    "Ġ t|h e|i n|Ġ a|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f|in g|Ġ p|o u|Ġan d|"
    "a l|a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|i c|l e|Ġ th|a s|l l|o m|Ġ re|Ġ n|Ġ l|e l|Ġ g|en t|Ġ e|Ġb e|v e|Ġ y|i d|o t|"
    "u t|Ġy ou|i l|s t|c h|g h|a m|i on|t h|Ġ on"
).split("|")


def byte_alphabet() -> list[str]:
    """The printable stand-in of each byte value, as byte-level BPE files spell it."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens [320], their GGUF types [320] and the merges."""
    words = [*SPECIAL_TOKENS, *byte_alphabet()]
    merges = []
    for merge in MERGES:
        word = merge.replace(" ", "")
        if all(part in words for part in merge.split(" ")) and word not in words and len(words) < N_VOCAB:
            words.append(word)
            merges.append(merge)
    assert len(words) == N_VOCAB, len(words)
    types = [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS) + [gguf.TokenType.NORMAL] * (N_VOCAB - len(SPECIAL_TOKENS))
    return words, [int(kind) for kind in types], merges


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Write the tiny tokenizer into a file."""
    tokens, types, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write(writer: gguf.GGUFWriter, tensors: Mapping[str, Array], quant: str = "F32") -> None:
    """Write all tensors and close; matrices whose rows fit whole blocks are stored as ``quant``."""
    kind = gguf.GGMLQuantizationType[quant]
    for name, data in tensors.items():
        if data.ndim == 2 and data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 and "conv1d" not in name:
            writer.add_tensor(name, gguf.quants.quantize(data.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def matrix(rng: np.random.Generator, rows: int, columns: int, gain: float = 1.0) -> Array:
    """[rows, columns] float32, scaled so that a normed input gives outputs of size ``gain``."""
    values: Array = rng.standard_normal((rows, columns), np.float32) * np.float32(gain / np.sqrt(columns))
    return values


def norm(rng: np.random.Generator, width: int) -> Array:
    """[width] float32 around 1: the weight of an RMS norm."""
    values: Array = 1 + np.float32(0.1) * rng.standard_normal(width, np.float32)
    return values


def make_target(
    path: Path,
    *,
    seed: int = 0,
    architecture: str = "llama",
    n_layer: int = 6,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    quant: str = "F32",
    tied: bool = False,
    sharpness: float = 4.0,
) -> Path:
    """A random target at ``path``: architecture "llama" fills its layer inputs, "qwen2" does not.

    ``sharpness`` is the size of the logits: 4 gives clear argmaxes, 1 nearly flat distributions.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(N_VOCAB)
    add_tokenizer(writer)
    tensors = target_tensors(
        seed=seed,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_ff=n_ff,
        tied=tied,
        sharpness=sharpness,
        qkv_bias=architecture == "qwen2",
    )
    write(writer, tensors, quant)
    return path


def target_tensors(
    *,
    seed: int = 0,
    n_layer: int = 6,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    tied: bool = False,
    sharpness: float = 4.0,
    qkv_bias: bool = False,
) -> dict[str, Array]:
    """The tensors of ``make_target`` [rows, columns], for tests that need the same numbers."""
    rng = np.random.default_rng(seed)
    head_dim = n_embd // n_head
    tensors = {"token_embd.weight": matrix(rng, N_VOCAB, n_embd, gain=np.sqrt(n_embd))}
    for layer in range(n_layer):
        block = {
            "attn_norm.weight": norm(rng, n_embd),
            "attn_q.weight": matrix(rng, n_head * head_dim, n_embd),
            "attn_k.weight": matrix(rng, n_head_kv * head_dim, n_embd),
            "attn_v.weight": matrix(rng, n_head_kv * head_dim, n_embd),
            "attn_output.weight": matrix(rng, n_embd, n_head * head_dim),
            "ffn_norm.weight": norm(rng, n_embd),
            "ffn_gate.weight": matrix(rng, n_ff, n_embd),
            "ffn_up.weight": matrix(rng, n_ff, n_embd),
            "ffn_down.weight": matrix(rng, n_embd, n_ff),
        }
        if qkv_bias:
            for name, heads in (("q", n_head), ("k", n_head_kv), ("v", n_head_kv)):
                block[f"attn_{name}.bias"] = np.float32(0.1) * norm(rng, heads * head_dim)
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in block.items()}
    tensors["output_norm.weight"] = norm(rng, n_embd)
    if not tied:
        tensors["output.weight"] = matrix(rng, N_VOCAB, n_embd, gain=sharpness)
    return tensors


def make_recurrent(path: Path, *, seed: int = 0, n_layer: int = 2, n_embd: int = 64, n_ctx: int = 512) -> Path:
    """A random Mamba target: a cache that cannot hold branches."""
    rng = np.random.default_rng(seed)
    inner, state, rank, kernel = 2 * n_embd, 8, 4, 4
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    add_tokenizer(writer)
    tensors = {"token_embd.weight": matrix(rng, N_VOCAB, n_embd, gain=np.sqrt(n_embd))}
    for layer in range(n_layer):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": norm(rng, n_embd),
            f"blk.{layer}.ssm_in.weight": matrix(rng, 2 * inner, n_embd),
            f"blk.{layer}.ssm_conv1d.weight": matrix(rng, inner, kernel),
            f"blk.{layer}.ssm_conv1d.bias": 0.1 * norm(rng, inner),
            f"blk.{layer}.ssm_x.weight": matrix(rng, rank + 2 * state, inner),
            f"blk.{layer}.ssm_dt.weight": matrix(rng, inner, rank),
            f"blk.{layer}.ssm_dt.bias": 0.1 * norm(rng, inner),
            f"blk.{layer}.ssm_a": -np.exp(matrix(rng, inner, state)),
            f"blk.{layer}.ssm_d": norm(rng, inner),
            f"blk.{layer}.ssm_out.weight": matrix(rng, n_embd, inner),
        }
    tensors["output_norm.weight"] = norm(rng, n_embd)
    write(writer, tensors)
    return path


HEAD = HeadConfig(
    taps=(2, 3, 5),
    n_embd=64,
    n_embd_target=64,
    n_ff=128,
    n_head=4,
    n_head_kv=2,
    head_dim=16,
    n_vocab=N_VOCAB,
    n_draft_vocab=128,
    n_ctx=512,
)


def head_tensors(
    config: HeadConfig, *, seed: int = 1, own_output: bool = True, own_embedding: bool = False
) -> dict[str, Array]:
    """Random tensors [rows, columns] of a head, in GGUF names and row order; d2t is absolute and sorted."""
    rng = np.random.default_rng(seed)
    shapes = config.tensors()
    if own_embedding:
        shapes["token_embd.weight"] = (config.n_embd, config.n_vocab)
    if own_output:
        shapes["output.weight"] = (config.n_embd, config.n_draft_vocab)
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        if name == "d2t":
            tensors[name] = np.sort(rng.choice(config.n_vocab, config.n_draft_vocab, replace=False)).astype(np.int64)
        elif len(shape) == 2:
            gain = {"token_embd.weight": 8.0, "output.weight": 4.0}.get(name, 1.0)
            tensors[name] = matrix(rng, shape[1], shape[0], gain)
        elif name == "rope_freqs.weight":
            tensors[name] = np.linspace(1, 8, shape[0], dtype=np.float32)
        else:
            tensors[name] = norm(rng, shape[0]) * (0.1 if name.endswith(".bias") else 1.0)
    return {name: tensor if name == "d2t" else tensor.astype(np.float32) for name, tensor in tensors.items()}


def write_head(
    path: Path,
    config: HeadConfig,
    tensors: Mapping[str, Array],
    *,
    quant: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tokenizer: bool = True,
) -> Path:
    """A head file of these tensors; ``metadata`` replaces or adds keys, so broken files can be made."""
    keys = {**config.to_metadata(), **(metadata or {})}
    writer = gguf.GGUFWriter(str(path), str(keys.pop("general.architecture")))
    adders: dict[type, Callable[..., None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            adders[type(value)](key, value)
    if tokenizer:
        add_tokenizer(writer)
    else:
        writer.add_tokenizer_model("none")
    write(writer, tensors, quant)
    return path


def make_head(
    path: Path,
    *,
    seed: int = 1,
    quant: str = "F32",
    own_output: bool = True,
    own_embedding: bool = False,
    **switches: Any,
) -> Path:
    """A random head at ``path``: ``HEAD`` with any of its fields replaced."""
    config = dataclasses.replace(HEAD, **switches)
    tensors = head_tensors(config, seed=seed, own_output=own_output, own_embedding=own_embedding)
    return write_head(path, config, tensors, quant=quant)
