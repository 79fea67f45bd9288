"""Tiny heads saved in every layout there is: names, shapes, configuration keys and quirks as their trainers leave them.

All fit ``tiny.make_target(n_layer=8)``: default boundaries 2, 4, 5, which trainers that count outputs call 1, 3, 4.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from eagle_edge_convert.head_reference import Maths
from tiny import N_VOCAB, target_tensors

from eagle_edge.head_format import RopeScaling

Tensors = dict[str, torch.Tensor]

E = 64  # the target's width
N_LAYER = 8
TAPS = (2, 4, 5)
OUTPUTS = [1, 3, 4]
R = 128
N_FF = 96
IDS = "eagle_aux_hidden_state_layer_ids"


def make_tensors(
    *,
    seed: int = 3,
    H: int = E,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 16,
    eagle1: bool = False,
    fc_in: int | None = 3 * E,
    n_draft: int = R,
    n_layer: int = 1,
    more: Mapping[str, tuple[int, ...]] | None = None,
) -> Tensors:
    """Random tensors under bare names; ``more`` adds biases, norms and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {}
    if eagle1 or fc_in:
        shapes["fc.weight"] = (H, 2 * H if eagle1 else fc_in or 0)
    for layer in range(n_layer):
        width = H if eagle1 or layer > 0 else 2 * H
        block = {
            "self_attn.q_proj.weight": (n_head * head_dim, width),
            "self_attn.k_proj.weight": (n_head_kv * head_dim, width),
            "self_attn.v_proj.weight": (n_head_kv * head_dim, width),
            "self_attn.o_proj.weight": (H, n_head * head_dim),
            "mlp.gate_proj.weight": (N_FF, H),
            "mlp.up_proj.weight": (N_FF, H),
            "mlp.down_proj.weight": (H, N_FF),
            "post_attention_layernorm.weight": (H,),
            **({} if eagle1 and layer == 0 else {"input_layernorm.weight": (H,)}),
            **({} if eagle1 or layer > 0 else {"hidden_norm.weight": (H,)}),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    if not eagle1:
        shapes |= {"norm.weight": (H,), "lm_head.weight": (n_draft, H)}
    shapes |= more or {}
    out = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        is_norm = len(shape) == 1 and name.endswith("weight")
        out[name] = 1 + 0.1 * values if is_norm else 0.1 * values if len(shape) == 1 else values / shape[1] ** 0.5
    if "embed_tokens.weight" in out:
        out["embed_tokens.weight"] *= 8
    if not eagle1 and n_draft < N_VOCAB:
        out |= vocabulary_maps(np.sort(np.random.default_rng(seed).choice(N_VOCAB, n_draft, replace=False)))
    return out


def vocabulary_maps(ids: Any) -> Tensors:
    """Offsets d2t and the mask t2d for draft ids in any order."""
    t2d = torch.zeros(N_VOCAB, dtype=torch.bool)
    t2d[torch.from_numpy(ids)] = True
    return {"d2t": torch.from_numpy(ids - np.arange(len(ids))), "t2d": t2d}


def target_embedding() -> torch.Tensor:
    """The embedding of ``tiny.make_target(n_layer=8)``."""
    return torch.from_numpy(target_tensors(n_layer=N_LAYER)["token_embd.weight"])


@dataclass
class Layout:
    """A head as one project saves it.

    Attributes:
        tensors: under bare names.
        config: config.json.
        maths: what it computes.
        rename: a bare name to the project's.
        drop: bare names that the project does not save.
        save: "safetensors", "bin" or "shards".
        taps: the boundaries it means.
    """

    tensors: Tensors
    config: dict[str, Any]
    maths: Maths = field(default_factory=Maths)
    rename: Callable[[str], str] = str
    drop: tuple[str, ...] = ()
    save: str = "safetensors"
    taps: tuple[int, ...] = TAPS

    def write(self, folder: Path) -> Path:
        """Save it into ``folder``."""
        state = {self.rename(name): t.contiguous() for name, t in self.tensors.items() if name not in self.drop}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.save == "bin":
            torch.save(state, folder / "pytorch_model.bin")
        elif self.save == "shards":
            _save_shards(state, folder)
        else:
            safetensors.torch.save_file(state, folder / "model.safetensors")
        return folder


def _save_shards(state: Tensors, folder: Path) -> None:
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        safetensors.torch.save_file({name: state[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def midlayer(name: str) -> str:
    """SafeAILab's and SpecForge's spelling."""
    return name.replace("layers.0.", "midlayer.")


def sizes(H: int = E, **more: Any) -> dict[str, Any]:
    """The keys that every Llama-like configuration has."""
    return {
        "hidden_size": H,
        "intermediate_size": N_FF,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "vocab_size": N_VOCAB,
        "hidden_act": "silu",
        **more,
    }


def speculators(layer: dict[str, Any] | None = None, /, **top: Any) -> dict[str, Any]:
    """The nested configuration of vLLM's Speculators."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "transformer_layer_config": {**sizes(), "model_type": "llama", "attention_bias": False, **(layer or {})},
        "draft_vocab_size": R,
        "tie_word_embeddings": False,
        "norm_before_residual": True,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/b"}},
        **top,
    }


FC_NORM = {f"fc_norm.{k}.weight": (E,) for k in range(3)}
QKV_BIAS = {f"layers.0.self_attn.{x}_proj.bias": (n,) for x, n in (("q", 64), ("k", 32), ("v", 32))}
EMBED = {"embed_tokens.weight": (N_VOCAB, E)}
EAGLE1 = Maths(eagle1=True)


def _eagle1(**more: Any) -> Tensors:
    return {**make_tensors(eagle1=True, **more), "embed_tokens.weight": target_embedding()}


def layouts() -> dict[str, Layout]:
    """Every layout, by a name of its own."""
    plain = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    nested = {"eagle_config": {IDS: OUTPUTS, "use_aux_hidden_state": True}}
    frequency_order = np.random.default_rng(8).permutation(N_VOCAB)[:R]
    return {
        "safeailab_eagle1": Layout(_eagle1(more={"fc.bias": (E,)}), {**plain, **sizes()}, EAGLE1, save="bin"),
        "safeailab_eagle1_llama3": Layout(
            _eagle1(),
            {**plain, **sizes(bias=False, rope_theta=500000.0)},
            Maths(eagle1=True, theta=5e5),
        ),
        "safeailab_eagle2_qwen2": Layout(
            _eagle1(more={"fc.bias": (E,), **QKV_BIAS}), {**plain, **sizes(qkv_bias=True)}, EAGLE1, save="bin"
        ),
        "hass": Layout(_eagle1(more={"fc.bias": (E,)}), {**plain, **sizes(bias=True)}, EAGLE1, save="shards"),
        "safeailab_eagle3": Layout(make_tensors(), {**plain, **sizes(draft_vocab_size=R)}, rename=midlayer, save="bin"),
        "safeailab_eagle3_wider_target": Layout(
            make_tensors(H=96, n_head=8, n_head_kv=4, head_dim=32, more={"embed_tokens.weight": (N_VOCAB, 96)}),
            {
                **plain,
                **sizes(96, num_attention_heads=8, num_key_value_heads=4, draft_vocab_size=R, target_hidden_size=E),
            },
            Maths(n_head=8, n_head_kv=4),
            rename=midlayer,
        ),
        "safeailab_eagle3_full_vocabulary": Layout(
            {**make_tensors(n_draft=N_VOCAB), "d2t": torch.zeros(N_VOCAB, dtype=torch.int64)},
            {**plain, **sizes(draft_vocab_size=N_VOCAB, num_hidden_layers=40)},
            rename=midlayer,
            save="bin",
        ),
        "specforge": Layout(
            make_tensors(head_dim=32),
            {**sizes(draft_vocab_size=R, head_dim=32, rope_theta=1e6), **nested},
            Maths(theta=1e6),
            rename=midlayer,
        ),
        "specforge_eagle31": Layout(
            make_tensors(more=FC_NORM),
            {**sizes(draft_vocab_size=R, fc_norm=True, norm_output=True), **nested},
            Maths(normed_feedback=True),
            rename=midlayer,
        ),
        "specforge_llama3_rope": Layout(
            make_tensors(),
            sizes(
                draft_vocab_size=R,
                rope_theta=500000.0,
                rope_scaling={
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            ),
            Maths(theta=5e5, llama3=(8.0, 1.0, 4.0, 64)),
            rename=midlayer,
        ),
        "speculators_eagle1": Layout(
            make_tensors(eagle1=True, more={"fc.bias": (E,)}),
            {
                "speculators_model_type": "eagle",
                "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
                "transformer_layer_config": sizes(),
                "layernorms": False,
                "fusion_bias": True,
            },
            EAGLE1,
            rename=lambda name: name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."),
        ),
        "speculators_eagle3": Layout(
            {**make_tensors(), "embed_tokens.weight": target_embedding()},
            speculators(**{IDS: [1, 3, 6]}),
            Maths(normed_residual=True),
            taps=(1, 3, 6),
        ),
        "speculators_qwen3": Layout(
            make_tensors(
                more={**{f"layers.0.self_attn.{x}_norm.weight": (16,) for x in "qk"}, "input_norm.weight": (192,)}
            ),
            speculators(
                {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
                norm_before_fc=True,
            ),
            Maths(normed_residual=True, theta=1e6),
        ),
        "speculators_two_layers_with_a_window": Layout(
            make_tensors(n_layer=2),
            speculators({"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2, "sliding_window": 4}),
            Maths(normed_residual=True, window=4),
        ),
        "speculators_trained_embedding": Layout(
            make_tensors(more=EMBED), speculators(embed_requires_grad=True), Maths(normed_residual=True)
        ),
        "angelslim": Layout(
            make_tensors(),
            {
                **sizes(draft_vocab_size=R, rope_theta=1000000.0, head_dim=80, tie_word_embeddings=True),
                "architectures": ["Eagle3LlamaForCausalLM"],
                "aux_hidden_states_layer_ids": OUTPUTS,
            },
            rename=midlayer,
        ),
        "modelopt": Layout(
            {**make_tensors(), **vocabulary_maps(frequency_order)},
            {
                **sizes(
                    draft_vocab_size=R,
                    rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048},
                ),
                "eagle_config": {**nested["eagle_config"], "use_last_layernorm": True, "use_mtp_layernorm": False},
            },
            Maths(scaling=RopeScaling("yarn", 32.0, 2048)),
            drop=("t2d",),
        ),
        "modelopt_gpt_oss": Layout(
            make_tensors(more={"input_norm.weight": (192,)}),
            {**sizes(draft_vocab_size=R), "eagle_config": {IDS: [4, 6, 8], "norm_before_fc": True}},
            taps=(4, 6, 8),
        ),
        "modelopt_without_taps": Layout(
            make_tensors(fc_in=None, n_draft=N_VOCAB),
            {**sizes(draft_vocab_size=N_VOCAB), "eagle_config": {"use_aux_hidden_state": False}},
            taps=(-1,),
        ),
        "nemo_automodel": Layout(
            make_tensors(more=FC_NORM), sizes(draft_vocab_size=R, fc_norm=True), rename=lambda name: f"model.{name}"
        ),
        "sglang_eagle31": Layout(
            make_tensors(more={**FC_NORM, "fc.bias": (E,)}),
            {**sizes(draft_vocab_size=R, bias=True, use_aux_norm=True, norm_output=True)},
            Maths(normed_feedback=True),
            rename=lambda name: (
                midlayer(name)
                .replace("fc_norm.0", "aux_norm_low")
                .replace("fc_norm.1", "aux_norm_mid")
                .replace("fc_norm.2", "aux_norm_high")
            ),
        ),
        "four_taps": Layout(
            make_tensors(fc_in=4 * E),
            {**sizes(draft_vocab_size=R), IDS: [1, 3, 5, 7]},
            taps=(1, 3, 5, 7),
        ),
        "attention_and_mlp_biases": Layout(
            make_tensors(
                more={
                    **QKV_BIAS,
                    "layers.0.self_attn.o_proj.bias": (E,),
                    **{f"layers.0.mlp.{x}_proj.bias": (N_FF,) for x in ("gate", "up")},
                    "layers.0.mlp.down_proj.bias": (E,),
                }
            ),
            {**sizes(draft_vocab_size=R, attention_bias=True, mlp_bias=True), **nested},
        ),
    }
