"""Tiny random models of many architectures, saved by transformers as their makers would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import CHAT_TEMPLATE, N_VOCAB, SPECIAL_TOKENS, vocabulary

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": N_VOCAB,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
HEAD_DIM = {"head_dim": 16}
# Architecture: its configuration class and what it needs beyond the common sizes.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {**HEAD_DIM, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", HEAD_DIM),
    "gemma3": ("Gemma3TextConfig", {**HEAD_DIM, "query_pre_attn_scalar": 16, "sliding_window": 512}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {"logits_scaling": 2.0, "residual_multiplier": 0.9, "attention_multiplier": 0.25}),
    "starcoder2": ("Starcoder2Config", {}),
}


def save_tokenizer(folder: Path) -> None:
    """tokenizer.json and its configuration: byte-level BPE over ``tiny.vocabulary``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, _, merges = vocabulary()
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(merge.split(" ")[0], merge.split(" ")[1]) for merge in merges],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[3],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_sentencepiece(folder: Path, text: str, kind: str) -> None:
    """A sentencepiece BPE tokenizer with byte fall-back, trained on ``text``, in place of the byte-level one.

    ``kind`` is "Llama", which puts a space before a text, or "Gemma", which does not.
    """
    import sentencepiece

    (folder / "tokenizer.json").unlink()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split(". ")),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=N_VOCAB,
        byte_fallback=True,
        add_dummy_prefix=kind == "Llama",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    config = {"tokenizer_class": f"{kind}Tokenizer", "add_bos_token": True, "legacy": False}
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **special}))


def save_model(folder: Path, architecture: str, *, seed: int = 0, **more: Any) -> Path:
    """A random model of ``architecture`` in float32, with its tokenizer, in ``folder``."""
    torch.manual_seed(seed)
    name, extra = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**{**SIZES, **extra, **more})
    model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim == 1 and "norm" in key:
                weight += 0.1 * torch.randn_like(weight)
            elif weight.ndim == 1:
                weight += 0.05 * torch.randn_like(weight)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_folder(model: Path, folder: Path) -> Path:
    """A GGUF Llama as the Hugging Face folder it came from: float32 weights and the tokenizer, from the file alone."""
    import gguf
    from reference_target import load_llama
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    load_llama(model).save_pretrained(folder)
    fields = gguf.GGUFReader(str(model)).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    special = {index for index, kind in enumerate(types) if kind == gguf.TokenType.CONTROL}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # the one llama.cpp calls smollm
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(tokens[index], special=True) for index in sorted(special)])
    tokenizer.save(str(folder / "tokenizer.json"))

    def spelled(key: str) -> str:
        return str(tokens[fields[f"tokenizer.ggml.{key}_token_id"].contents()])

    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": spelled("bos"),
        "eos_token": spelled("eos"),
        "pad_token": spelled("padding"),
        "add_bos_token": False,
        "chat_template": fields["tokenizer.chat_template"].contents(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
