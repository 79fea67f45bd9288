"""A trained head as a checkpoint other projects read: the SafeAILab and SpecForge layout.

model.safetensors holds ``midlayer.*``, ``fc``, ``norm``, ``lm_head``, ``d2t`` (offsets) and ``t2d``; the token
embedding is the target's and stays out. config.json carries the switches at the top level and under ``eagle_config``.
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
    tensors["d2t"] = torch.from_numpy(vocabulary.ids - np.arange(len(vocabulary.ids)))
    tensors["t2d"] = torch.from_numpy(vocabulary.draft_ids() >= 0)
    partial = folder / "model.safetensors.partial"
    partial.write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))
    partial.replace(folder / "model.safetensors")
    config = checkpoint_config(head.config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def checkpoint_config(config: HeadConfig, dtype: str) -> dict[str, Any]:
    """The keys of config.json, as SpecForge names them."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "target_hidden_size": config.n_embd_target,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": 1,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head_kv,
        "head_dim": config.head_dim,
        "vocab_size": config.n_vocab,
        "draft_vocab_size": config.n_draft_vocab,
        "max_position_embeddings": config.n_ctx,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        # Boundaries under the top-level key, which readers take as they are.
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
    }
