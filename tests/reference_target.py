"""The target in transformers, from a GGUF file's weights: an oracle that shares no code with llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_llama(path: Path) -> Any:
    """A float32 Llama with the file's dequantised weights."""
    reader = gguf.GGUFReader(path)

    def number(key: str) -> float:
        field = reader.get_field(f"llama.{key}")
        assert field is not None
        return float(field.contents())

    n_head, n_head_kv = int(number("attention.head_count")), int(number("attention.head_count_kv"))
    weights = {tensor.name: _dequantised(tensor) for tensor in reader.tensors}
    settings: dict[str, Any] = {
        "rope_theta": number("rope.freq_base"),
        "attn_implementation": "eager",
    }
    config = LlamaConfig(
        vocab_size=len(weights["token_embd.weight"]),
        hidden_size=int(number("embedding_length")),
        intermediate_size=int(number("feed_forward_length")),
        num_hidden_layers=int(number("block_count")),
        num_attention_heads=n_head,
        num_key_value_heads=n_head_kv,
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in weights,
        **settings,
    )
    state = {}
    for name, value in weights.items():
        parts = name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                value = _rotate_half_order(value, n_head if parts[2] == "attn_q" else n_head_kv)
            state[f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.weight"] = value
    state["model.embed_tokens.weight"] = weights["token_embd.weight"]
    state["model.norm.weight"] = weights["output_norm.weight"]
    state["lm_head.weight"] = weights.get("output.weight", weights["token_embd.weight"])
    model = LlamaForCausalLM(config)
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()})
    model.train(False)
    return model


def _dequantised(tensor: gguf.ReaderTensor) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    return values


def _rotate_half_order(rows: npt.NDArray[np.float32], n_head: int) -> npt.NDArray[np.float32]:
    """Undo the pairing that GGUF's rotary order asks of the rows of q and k."""
    paired = rows.reshape(n_head, -1, 2, rows.shape[-1])
    ordered: npt.NDArray[np.float32] = paired.swapaxes(1, 2).reshape(rows.shape)
    return ordered


def boundary_states(model: Any, ids: list[int], boundaries: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """[len(ids), K*E]: the residual stream entering the layers ``boundaries``; -1 is after the final norm."""
    with torch.inference_mode():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    rows: list[npt.NDArray[np.float32]] = [states[boundary][0].numpy() for boundary in boundaries]
    out: npt.NDArray[np.float32] = np.concatenate(rows, axis=1)
    return out
