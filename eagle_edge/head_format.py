"""What a draft head is, and how it is written in a GGUF file; shared by the engine and the converters.

A head that llama.cpp's ``eagle3`` architecture can express is written as exactly that architecture, key for key, so the
same file runs in llama-server. Every other head is written as architecture ``eagle`` with the same names and a few
more, which llama.cpp refuses in one line instead of running it wrongly. Keys are prefixed with the architecture's name.
Rows of q and k are in the order of ggml's NORM rotary embedding (see ``rope_row_order``). This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .gguf_header import GgufHeader, Scalar
from .head_tensors import head_tensors, rope_row_order

__all__ = ["HeadConfig", "RopeScaling", "rope_row_order"]

AFTER_FINAL_NORM = -1
MAX_TAPS = 16
MAX_LAYERS = 64
MAX_VOCAB = 1 << 22


def _is_positive(value: float) -> bool:
    """Also as the 32-bit float that a GGUF holds."""
    return 1e-37 < value < 1e37


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the head stretches its rotary embedding; ``kind`` is "linear" or "yarn".

    (The llama3 kind is not here: it is the tensor ``rope_freqs.weight``, see ``HeadConfig.rope_factors``.)
    """

    kind: str
    factor: float
    original_n_ctx: int
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "yarn"):
            raise ValueError(f"rope scaling {self.kind!r} is not known; known are linear and yarn")
        if not _is_positive(self.factor) or not _is_positive(self.attention_factor):
            raise ValueError(f"rope scaling needs positive factors, got {self.factor} and {self.attention_factor}")
        if not max(abs(self.beta_fast), abs(self.beta_slow)) < 1e37:
            raise ValueError(f"rope scaling cannot have betas of {self.beta_fast} and {self.beta_slow}")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Every switch of the EAGLE family.

    Attributes:
        kind: "eagle1" (EAGLE-1, EAGLE-2, HASS) or "eagle3" (EAGLE-3, EAGLE-3.1).
        taps: [K] boundaries: b reads the residual stream entering target layer b, -1 the state after the final norm.
        n_embd, n_embd_target: H and E.
        n_ff, n_head, n_head_kv, head_dim, n_layer: the shape of the decoder layers.
        n_vocab, n_draft_vocab: V and R; R < V needs the tensor ``d2t``.
        n_ctx: the context the head was trained for.
        rms_eps, rope_theta, rope_scaling: as in the head's own configuration, not the target's.
        rope_factors: the file has ``rope_freqs.weight``, the divisors of llama3-style scaling.
        norm_before_residual: the residual is the normed feature, not the raw one (RedHat heads).
        norm_before_fc: one RMS norm over all taps before fc.
        fc_norm: an RMS norm for each tap before fc (EAGLE-3.1).
        norm_output: the normed output is fed back, not the raw one (EAGLE-3.1).
        fc: the taps go through a matrix fc; without it (K = 1, E = H) they are the feature.
        fc_bias, qkv_bias, output_bias, mlp_bias: biases of fc, of q/k/v, of the attention output, of the MLP.
        qk_norm: an RMS norm over each head of q and k (Qwen3 layers).
        sliding_window: positions a query sees, itself included; 0 = all.

    Raises:
        ValueError: a combination that no head can have.
    """

    taps: tuple[int, ...]
    n_embd: int
    n_embd_target: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_draft_vocab: int
    kind: str = "eagle3"
    n_layer: int = 1
    n_ctx: int = 2048
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_factors: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    fc: bool = True
    fc_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int = 0

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError(f"impossible head: {'; '.join(problems)}")

    def _problems(self) -> list[str]:
        out = []
        sizes = ("n_embd", "n_embd_target", "n_ff", "n_head", "n_head_kv", "head_dim", "n_vocab", "n_draft_vocab")
        out += [f"{name} is {getattr(self, name)}" for name in (*sizes, "n_layer", "n_ctx") if getattr(self, name) < 1]
        if self.kind not in ("eagle1", "eagle3"):
            out.append(f"kind is {self.kind!r}, not eagle1 or eagle3")
        if not 1 <= len(self.taps) <= MAX_TAPS or any(tap < AFTER_FINAL_NORM for tap in self.taps):
            out.append(f"taps are {list(self.taps)}, wanted 1..{MAX_TAPS} layer ids of -1 or more")
        if self.n_layer > MAX_LAYERS:
            out.append(f"n_layer is {self.n_layer}, at most {MAX_LAYERS} are supported")
        if self.n_head_kv > 0 and self.n_head % self.n_head_kv:
            out.append(f"n_head {self.n_head} is not a multiple of n_head_kv {self.n_head_kv}")
        if self.head_dim % 2:
            out.append(f"head_dim {self.head_dim} is odd")
        if self.n_vocab > MAX_VOCAB:
            out.append(f"n_vocab is {self.n_vocab}, at most {MAX_VOCAB} are supported")
        if self.n_draft_vocab > self.n_vocab:
            out.append(f"n_draft_vocab {self.n_draft_vocab} is larger than n_vocab {self.n_vocab}")
        if not _is_positive(self.rms_eps) or not _is_positive(self.rope_theta):
            out.append(f"rms_eps {self.rms_eps} and rope_theta {self.rope_theta} must be positive")
        if self.sliding_window < 0:
            out.append(f"sliding_window is {self.sliding_window}")
        if self.norm_before_fc and self.fc_norm:
            out.append("norm_before_fc and fc_norm exclude each other")
        return out + (self._eagle1_problems() if self.kind == "eagle1" else self._fc_problems())

    def _eagle1_problems(self) -> list[str]:
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        out = [f"eagle1 has no {flag}" for flag in flags if getattr(self, flag)]
        if not self.fc:
            out.append("eagle1 needs fc")
        if self.n_embd != self.n_embd_target or len(self.taps) != 1:
            out.append(f"eagle1 reads one tap as wide as itself, not {len(self.taps)} of {self.n_embd_target}")
        return out

    def _fc_problems(self) -> list[str]:
        if self.fc:
            return []
        out = [f"{flag} needs fc" for flag in ("norm_before_fc", "fc_norm", "fc_bias") if getattr(self, flag)]
        if len(self.taps) != 1 or self.n_embd != self.n_embd_target:
            out.append(
                f"without fc one tap of width {self.n_embd} is read, not {len(self.taps)} of {self.n_embd_target}"
            )
        return out

    @property
    def architecture(self) -> str:
        """``eagle3`` where llama.cpp's graph of that name computes exactly this head, otherwise ``eagle``."""
        own = self.fc_norm or self.norm_output or self.qk_norm or self.sliding_window or not self.fc
        biases = self.fc_bias or self.qkv_bias or self.output_bias or self.mlp_bias
        shape = self.kind != "eagle3" or len(self.taps) != 3 or min(self.taps) < 0 or self.n_layer != 1
        return "eagle" if own or biases or shape else "eagle3"

    def to_metadata(self) -> dict[str, Scalar | list[int]]:
        """The GGUF keys of this head; int is uint32, float is float32, a list is an int32 array."""
        values: dict[str, Scalar | list[int]] = {
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "block_count": self.n_layer,
            "feed_forward_length": self.n_ff,
            "vocab_size": self.n_vocab,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.rms_eps,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_theta,
            "target_layers": list(self.taps),
            "target_hidden_size": self.n_embd_target,
            "norm_before_residual": self.norm_before_residual,
            "norm_before_fc": self.norm_before_fc,
        }
        if self.rope_scaling is not None:
            values["rope.scaling.type"] = self.rope_scaling.kind
            values["rope.scaling.factor"] = self.rope_scaling.factor
            values["rope.scaling.original_context_length"] = self.rope_scaling.original_n_ctx
            values["rope.scaling.attn_factor"] = self.rope_scaling.attention_factor
            values["rope.scaling.yarn_beta_fast"] = self.rope_scaling.beta_fast
            values["rope.scaling.yarn_beta_slow"] = self.rope_scaling.beta_slow
        if self.architecture == "eagle":
            values["kind"] = self.kind
            values["attention.sliding_window"] = self.sliding_window
            values.update({flag: getattr(self, flag) for flag in _EAGLE_FLAGS})
        prefixed: dict[str, Scalar | list[int]] = {"general.architecture": self.architecture}
        prefixed.update({f"{self.architecture}.{key}": value for key, value in values.items()})
        return prefixed

    @classmethod
    def from_metadata(cls, header: GgufHeader) -> HeadConfig:
        """The head that ``header`` describes.

        Raises:
            FileFormatError: not a head, a key is missing or of another type, or the head is impossible.
        """
        arch = header.architecture
        if arch not in ("eagle", "eagle3"):
            header.fail(f"a {arch} model is not a draft head; give a head converted with: eagle-edge convert head")
        n_embd, n_head = header.get(f"{arch}.embedding_length", int), header.get(f"{arch}.attention.head_count", int)
        n_vocab = _n_vocab(header, arch)
        d2t = header.tensors.get("d2t")
        try:
            config = cls(
                taps=header.integers(f"{arch}.target_layers"),
                n_embd=n_embd,
                n_embd_target=header.get(f"{arch}.target_hidden_size", int),
                n_ff=header.get(f"{arch}.feed_forward_length", int),
                n_head=n_head,
                n_head_kv=header.get(f"{arch}.attention.head_count_kv", int, n_head),
                head_dim=header.get(f"{arch}.attention.key_length", int, n_embd // max(n_head, 1)),
                n_vocab=n_vocab,
                n_draft_vocab=d2t.shape[0] if d2t else n_vocab,
                n_layer=header.get(f"{arch}.block_count", int),
                n_ctx=header.get(f"{arch}.context_length", int, 2048),
                rms_eps=header.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
                rope_theta=header.get(f"{arch}.rope.freq_base", float, 10000.0),
                rope_scaling=_rope_scaling(header, arch),
                rope_factors="rope_freqs.weight" in header.tensors,
                norm_before_residual=header.get(f"{arch}.norm_before_residual", bool, False),
                norm_before_fc=header.get(f"{arch}.norm_before_fc", bool, False),
                kind=header.get(f"{arch}.kind", str, "eagle3"),
                sliding_window=header.get(f"{arch}.attention.sliding_window", int, 0),
                **{flag: header.get(f"{arch}.{flag}", bool, flag == "fc") for flag in _EAGLE_FLAGS},
            )
        except ValueError as error:
            header.fail(str(error))
        _refuse_unknown_keys(header, config)
        return config

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name to shape (ggml's order) of every tensor this head must have.

        Optional beside them: ``token_embd.weight`` [H, V] and ``output.weight`` [H, R]; a head without one borrows the
        target's.
        """
        return head_tensors(self)


_EAGLE_FLAGS = ("fc", "fc_norm", "norm_output", "fc_bias", "qkv_bias", "output_bias", "mlp_bias", "qk_norm")


def _n_vocab(header: GgufHeader, arch: str) -> int:
    """V: the key, else the tokenizer's length, else the rows of the head's own embedding."""
    tokens = header.strings("tokenizer.ggml.tokens")
    embedding = header.tensors.get("token_embd.weight")
    guess = len(tokens) if tokens else embedding.shape[-1] if embedding else None
    return header.get(f"{arch}.vocab_size", int, guess)


def _refuse_unknown_keys(header: GgufHeader, config: HeadConfig) -> None:
    """Fail on a switch of our own architecture that this version does not know: ignoring it would draft wrongly."""
    known = set(replace(config, rope_scaling=RopeScaling("yarn", 2.0, 1)).to_metadata())
    for key in header.metadata:
        if key.startswith("eagle.") and key not in known:
            header.fail(f"the key {key} is unknown; the head needs a newer eagle-edge")


def _rope_scaling(header: GgufHeader, arch: str) -> RopeScaling | None:
    key = f"{arch}.rope.scaling"
    kind = header.get(f"{key}.type", str, "none")
    if kind == "none":
        return None
    n_ctx = header.get(f"{arch}.context_length", int, 2048)
    return RopeScaling(
        kind=kind,
        factor=header.get(f"{key}.factor", float),
        original_n_ctx=header.get(f"{key}.original_context_length", int, n_ctx),
        attention_factor=header.get(f"{key}.attn_factor", float, 1.0),
        beta_fast=header.get(f"{key}.yarn_beta_fast", float, 32.0),
        beta_slow=header.get(f"{key}.yarn_beta_slow", float, 1.0),
    )
