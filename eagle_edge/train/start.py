"""Where training starts: the target's output matrix, final norm and last MLP, and an fc that sees every tap equally."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from .model import Head
from .target_weights import TargetWeights
from .vocabulary import Vocabulary

__all__ = ["initialise", "tap_sizes"]

Float32 = npt.NDArray[np.float32]


def tap_sizes(taps: Float32, n_taps: int) -> Float32:
    """[K] the median over tokens of each tap's root mean square, from taps [n, K*E].

    The median, because the first tokens of a text carry values a hundredfold.
    """
    parts = taps.reshape(len(taps), n_taps, -1)
    sizes: Float32 = np.median(np.sqrt(np.square(parts).mean(-1)), axis=0).astype(np.float32)
    return np.maximum(sizes, 1e-6)


@torch.no_grad()
def initialise(head: Head, vocabulary: Vocabulary, target: TargetWeights, sizes: Float32, seed: int) -> None:
    """Set all weights of a new head.

    Args:
        head: the head.
        vocabulary: picks the rows of the target's output matrix.
        target: what is copied where the shapes agree; the rest is random.
        sizes: [K] the typical size of each tap, which grows manyfold with depth.
        seed: of the random weights.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1]))
    config = head.config
    if config.kind == "eagle1":
        _balance(head, float(sizes[0]))
        return
    if config.fc and not (config.norm_before_fc or config.fc_norm):
        head.fc.weight.div_(torch.from_numpy(sizes).repeat_interleave(config.n_embd_target))
    if config.n_embd != target.n_embd:
        return
    head.lm_head.weight.copy_(target.output[torch.from_numpy(vocabulary.ids)])
    head.norm.weight.copy_(target.output_norm)
    if target.last_mlp is not None and target.last_mlp[0].shape[0] == config.n_ff:
        gate, up, down, norm = target.last_mlp
        head.midlayer.mlp.gate_proj.weight.copy_(gate)
        head.midlayer.mlp.up_proj.weight.copy_(up)
        head.midlayer.mlp.down_proj.weight.copy_(down)
        head.midlayer.post_attention_layernorm.weight.copy_(norm)


def _balance(head: Head, size: float) -> None:
    """Let fc of an EAGLE-1 head see the small embedding as well as the large feature, and give what is as large."""
    embedding = head.embedding[:: max(1, len(head.embedding) // 1024)].float().square().mean().sqrt()
    head.fc.weight[:, : head.config.n_embd] *= size / embedding.clamp(min=1e-6)
