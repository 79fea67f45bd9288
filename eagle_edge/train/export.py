"""A trained head as a checkpoint other projects read: the SafeAILab and SpecForge layout.

EAGLE-3: model.safetensors holds ``midlayer.*``, ``fc``, ``norm``, ``lm_head``, ``d2t`` (offsets) and ``t2d``. EAGLE-1:
``layers.0.*`` and ``fc``. What is the target's stays out: the token embedding, and the output matrix of EAGLE-1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from ..head_format import HeadConfig
from .model import Head
from .vocabulary import Vocabulary

__all__ = ["checkpoint_config", "export_checkpoint"]


def export_checkpoint(head: Head, vocabulary: Vocabulary, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the head into ``folder``; files appear complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in head.state_dict().items()}
    if head.config.kind == "eagle1":
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    else:
        tensors["d2t"] = torch.from_numpy(vocabulary.ids - np.arange(len(vocabulary.ids)))
        tensors["t2d"] = torch.from_numpy(vocabulary.draft_ids() >= 0)
    partial = folder / "model.safetensors.partial"
    partial.write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))
    partial.replace(folder / "model.safetensors")
    config = checkpoint_config(head.config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def checkpoint_config(config: HeadConfig, dtype: str) -> dict[str, Any]:
    """The keys of config.json, as SafeAILab (EAGLE-1) and SpecForge (EAGLE-3) name them."""
    common = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": 1,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head_kv,
        "head_dim": config.head_dim,
        "vocab_size": config.n_vocab,
        "max_position_embeddings": config.n_ctx,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "bias": config.fc_bias,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    if config.kind == "eagle1":
        return common
    return common | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "target_hidden_size": config.n_embd_target,
        "draft_vocab_size": config.n_draft_vocab,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        # Boundaries under the top-level key, which readers take as they are.
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
    }
