"""Where training starts: the output matrix and final norm of the target, and an fc that sees every tap at equal size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .model import Head
from .vocabulary import Vocabulary

__all__ = ["initialise"]

Float32 = npt.NDArray[np.float32]


@torch.no_grad()
def initialise(head: Head, vocabulary: Vocabulary, output: Tensor, output_norm: Tensor, tap_rms: Float32, seed: int) -> None:
    """Set the weights of a new head.

    Args:
        head: the head; every parameter is overwritten or left at torch's default.
        vocabulary: picks the rows of ``output``.
        output: [V, E] the target's output matrix.
        output_norm: [E] the weight of its final norm.
        tap_rms: [K] the typical size of each tap, which grows manyfold with depth.
        seed: of the random weights.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1]))
    if output.shape[1] == head.config.n_embd:
        head.lm_head.weight.copy_(output[torch.from_numpy(vocabulary.ids)])
        head.norm.weight.copy_(output_norm)
    if head.config.fc and not (head.config.norm_before_fc or head.config.fc_norm):
        scale = torch.from_numpy(tap_rms).float().repeat_interleave(head.config.n_embd_target)
        head.fc.weight.div_(scale)
