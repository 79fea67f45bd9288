"""From a checkpoint's tensors and config.json to one ``HeadConfig``.

A layout is recognised by its tensors; the configuration, which is known to lie about layer counts, head sizes and
architecture names, comes second. What a trainer leaves unsaid is filled in by the rule of that trainer, and every guess
is reported. Unknown mathematics is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle_edge.errors import FileFormatError, PairError
from eagle_edge.head_format import HeadConfig

from .config_values import ConfigValues
from .names import canonical_name
from .read import Checkpoint, Tensor
from .rope import read_rope_scaling, read_rope_theta
from .taps import AFTER_FINAL_NORM, read_taps
from .target import TargetFacts

__all__ = ["HeadOverrides", "canonical_tensors", "describe_head"]

Q, K, OUT = (f"layers.0.self_attn.{x}_proj.weight" for x in "qko")


@dataclass(frozen=True, slots=True)
class HeadOverrides:
    """What the user knows better than the checkpoint; None leaves it to the rules.

    ``own_embedding``: keep the head's token embedding (True) or use the target's (False).
    """

    taps: tuple[int, ...] | None = None
    rope_theta: float | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    norm_output: bool | None = None
    own_embedding: bool | None = None


def canonical_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors under the one spelling of their names.

    Raises:
        FileFormatError: two of them have the same one.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        if canonical_name(name) in out:
            raise FileFormatError(f"{checkpoint.folder}: {name} is there twice under different prefixes")
        out[canonical_name(name)] = tensor
    return out


def describe_head(
    config: ConfigValues,
    tensors: Mapping[str, Tensor],
    target: TargetFacts,
    n_draft_vocab: int,
    overrides: HeadOverrides,
    notes: list[str],
) -> HeadConfig:
    """The head; one sentence for each thing that was guessed is added to ``notes``.

    Raises:
        FileFormatError: not a head, a key has another type, or the mathematics is unknown here.
        PairError: the head was made for a target of another size.
    """
    return _Description(config, tensors, target, notes).head(n_draft_vocab, overrides)


class _Description:
    def __init__(
        self, config: ConfigValues, tensors: Mapping[str, Tensor], target: TargetFacts, notes: list[str]
    ) -> None:
        self.config, self.tensors, self.target, self.notes = config, tensors, target, notes

    def head(self, n_draft_vocab: int, overrides: HeadOverrides) -> HeadConfig:
        config, tensors = self.config, self.tensors
        config.refuse_unknown_mathematics()
        H, kind = self.shape(OUT, 2)[0], self.kind()
        n_head, n_head_kv, head_dim = self.heads()
        scaling, is_llama3 = read_rope_scaling(config, self.notes)
        try:
            return HeadConfig(
                kind=kind,
                taps=self.taps(kind, H, overrides.taps),
                n_embd=H,
                n_embd_target=self.target.n_embd,
                n_ff=self.shape("layers.0.mlp.gate_proj.weight", 2)[0],
                n_head=n_head,
                n_head_kv=n_head_kv,
                head_dim=head_dim,
                n_layer=self.n_layer(),
                n_vocab=self.target.n_vocab,
                n_draft_vocab=n_draft_vocab,
                n_ctx=config.integer("max_position_embeddings", 2048),
                rms_eps=config.number("rms_norm_eps", 1e-6),
                rope_theta=read_rope_theta(config, overrides.rope_theta, self.notes),
                rope_scaling=scaling,
                rope_factors=is_llama3,
                norm_before_residual=kind == "eagle3" and self.norm_before_residual(overrides),
                norm_before_fc=self.switch("norm_before_fc", "input_norm.weight", overrides.norm_before_fc),
                fc_norm=self.switch("fc_norm", "fc_norm.0.weight"),
                norm_output=kind == "eagle3" and self.norm_output(overrides),
                fc="fc.weight" in tensors,
                fc_bias=self.switch("bias", "fc.bias"),
                qkv_bias=self.qkv_bias(),
                output_bias="layers.0.self_attn.o_proj.bias" in tensors,
                mlp_bias=self.switch("mlp_bias", "layers.0.mlp.gate_proj.bias"),
                qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
                sliding_window=self.sliding_window(),
            )
        except ValueError as error:
            config.fail(str(error))

    def shape(self, name: str, n_dimensions: int) -> tuple[int, ...]:
        tensor = self.tensors.get(name)
        if tensor is None:
            self.config.fail(f"the tensor {name} is missing: not an EAGLE head, or only a part of one")
        if len(tensor.shape) != n_dimensions:
            self.config.fail(f"the tensor {name} has shape {list(tensor.shape)}, expected {n_dimensions} dimensions")
        return tensor.shape

    def kind(self) -> str:
        """EAGLE-1 attends over fc's output [H], EAGLE-3 over embedding and feature side by side [2H]."""
        H, q_columns = self.shape(OUT, 2)[0], self.shape(Q, 2)[1]
        if "mask_hidden" in self.tensors:
            self.config.fail("mask_hidden: a head that drafts in parallel (P-EAGLE), which is not supported")
        if q_columns == 2 * H:
            if "layers.0.hidden_norm.weight" not in self.tensors:
                self.config.fail("hidden_norm is missing, and how the feature is normed instead is not known")
            return "eagle3"
        if q_columns != H or "fc.weight" not in self.tensors or "layers.0.hidden_norm.weight" in self.tensors:
            self.config.fail(f"q_proj reads {q_columns} values; a head of width {H} reads {2 * H}, or {H} behind fc")
        if "layers.0.input_layernorm.weight" in self.tensors:
            self.config.fail("an EAGLE-1 head with input norms, which its readers compute in different ways")
        return "eagle1"

    def heads(self) -> tuple[int, int, int]:
        """Heads, key heads and their width; the width follows from the tensors, whatever head_dim says."""
        n_head = self.config.integer("num_attention_heads")
        n_head_kv = self.config.integer("num_key_value_heads", n_head)
        q_rows, kv_rows = self.shape(Q, 2)[0], self.shape(K, 2)[0]
        impossible = n_head < 1 or n_head_kv < 1 or q_rows % n_head or kv_rows % n_head_kv
        if impossible or q_rows // n_head != kv_rows // n_head_kv:
            self.config.fail(f"{n_head} and {n_head_kv} heads do not divide {q_rows} and {kv_rows} rows of q and k")
        head_dim = q_rows // n_head
        if self.config.integer("head_dim", head_dim) != head_dim:
            self.notes.append(f"head_dim is stored as {self.config.integer('head_dim')}, the tensors say {head_dim}")
        return n_head, n_head_kv, head_dim

    def n_layer(self) -> int:
        """The layers that are there; the configuration often counts the target's."""
        found = {int(name.split(".")[1]) for name in self.tensors if name.startswith("layers.")}
        if found != set(range(len(found))):
            self.config.fail(f"the layers {sorted(found)} do not follow each other")
        if self.config.integer("num_hidden_layers", len(found)) != len(found):
            stored = self.config.integer("num_hidden_layers")
            self.notes.append(f"num_hidden_layers is stored as {stored}, the tensors say {len(found)}")
        return len(found)

    def taps(self, kind: str, H: int, override: tuple[int, ...] | None) -> tuple[int, ...]:
        E, folder = self.target.n_embd, self.config.checkpoint.folder
        reads = self.config.integer("target_hidden_size", E)
        if reads != E:
            raise PairError(
                f"{folder}: the head reads hidden states {reads} wide, the target's are {E}: another target"
            )
        fc_in = self.shape("fc.weight", 2)[1] if "fc.weight" in self.tensors else None
        if kind == "eagle1" or fc_in is None:
            if H != E:
                raise PairError(f"{folder}: the head is {H} wide, the target {E}: another target")
            if override is not None:
                raise PairError(
                    f"{folder}: this head reads the state after the final norm; --tap-layers does not apply"
                )
            if fc_in is not None and fc_in != 2 * H:
                self.config.fail(f"fc reads {fc_in} values, an EAGLE-1 head of width {H} reads {2 * H}")
            return (AFTER_FINAL_NORM,)
        if self.config.flag("use_aux_hidden_state") is False:
            self.config.fail("config.json: use_aux_hidden_state is false, but there is an fc to read taps through")
        if fc_in % E:
            raise PairError(f"{folder}: fc reads {fc_in} values, not a multiple of the target's width {E}")
        return read_taps(self.config, self.target, fc_in // E, override, self.notes)

    def switch(self, key: str, tensor: str, override: bool | None = None) -> bool:
        """A switch that comes with a tensor: the tensor decides, and a configuration that needs one must have it."""
        present, stored = tensor in self.tensors, self.config.flag(key)
        if override is not None:
            return override
        if stored and not present:
            self.config.fail(f"config.json: {key} is on, but the tensor {tensor} is missing")
        if present and stored is False:
            self.notes.append(f"{key} is stored as false, but the tensor {tensor} is there: on")
        return present

    def qkv_bias(self) -> bool:
        q_bias = "layers.0.self_attn.q_proj.bias"
        return self.switch("qkv_bias", q_bias) | self.switch("attention_bias", q_bias)

    def norm_before_residual(self, overrides: HeadOverrides) -> bool:
        stored = self.config.flag("norm_before_residual")
        if overrides.norm_before_residual is not None:
            return overrides.norm_before_residual
        if stored is None and self.config.is_speculators:
            self.notes.append("norm_before_residual is not stored: on, as vLLM reads it; --no-norm-before-residual")
            return True
        return bool(stored)

    def norm_output(self, overrides: HeadOverrides) -> bool:
        stored = self.config.flag("norm_output")
        if overrides.norm_output is not None:
            return overrides.norm_output
        if stored and "fc_norm.0.weight" not in self.tensors:
            self.notes.append(
                "norm_output: the normed output is fed back; SpecForge before September 2026 wrote the key "
                "without doing so, then use --no-norm-output"
            )
        return bool(stored)

    def sliding_window(self) -> int:
        kinds = self.config.values.get("layer_types")
        if kinds is None:
            if self.config.values.get("use_sliding_window"):
                self.config.fail("config.json: use_sliding_window without layer_types is not understood")
            return 0
        n = self.n_layer()
        if not isinstance(kinds, list) or len(kinds) < n or kinds[:n] != [kinds[0]] * n:
            self.config.fail(f"config.json: layer_types {kinds!r} are not the same for all {n} layers")
        if kinds[0] == "full_attention":
            return 0
        if kinds[0] != "sliding_attention":
            self.config.fail(f"config.json: the layer type {kinds[0]!r} is not understood")
        return self.config.integer("sliding_window")
