"""Which layers of the target a head reads: every trainer's convention brought to boundaries.

Boundary b is the residual stream entering layer b, that is the output of layer b - 1. vLLM and Speculators store
boundaries at the top level of the configuration; SpecForge, ModelOpt (under ``eagle_config``) and AngelSlim store the
layers whose outputs they read, one less, but for a few published heads. All defaults read the same three boundaries.
"""

from __future__ import annotations

from eagle_edge.errors import PairError

from .config_values import ConfigValues
from .target import TargetFacts

__all__ = ["AFTER_FINAL_NORM", "read_taps"]

AFTER_FINAL_NORM = -1
KEY = "eagle_aux_hidden_state_layer_ids"


def read_taps(
    config: ConfigValues, target: TargetFacts, n_taps: int, override: tuple[int, ...] | None, notes: list[str]
) -> tuple[int, ...]:
    """[K] boundaries; what was guessed is added to ``notes``.

    Raises:
        FileFormatError: the ids are not a list of whole numbers.
        PairError: there are not ``n_taps``, or the target has no such layers.
    """
    folder = config.checkpoint.folder
    taps = override if override is not None else _stored(config, target, notes)
    if len(taps) != n_taps:
        raise PairError(f"{folder}: fc reads {n_taps} taps of width {target.n_embd}, but {len(taps)} layers are named")
    if any(not 0 <= tap <= target.n_layer for tap in taps):
        raise PairError(f"{folder}: the layers {list(taps)} are not in the target's 0..{target.n_layer}")
    if len(set(taps)) != len(taps):
        raise PairError(f"{folder}: the layers {list(taps)} are not distinct; say which they are with --tap-layers")
    return taps


def _stored(config: ConfigValues, target: TargetFacts, notes: list[str]) -> tuple[int, ...]:
    default = (2, target.n_layer // 2, target.n_layer - 3)
    ids = config.values.get(KEY)
    if ids is not None:
        return config.layer_ids(ids)
    outputs = config.nested.get(KEY, config.values.get("aux_hidden_states_layer_ids"))
    if outputs is None:
        notes.append(f"no layer ids are stored: the default boundaries {list(default)}; --tap-layers overrides")
        return default
    taps = config.layer_ids(outputs)
    if taps == default or target.n_layer in taps:
        notes.append(f"the layer ids {list(taps)} can only be boundaries, and are read so; --tap-layers overrides")
    elif taps[:1] == (1,):
        taps = tuple(tap + 1 for tap in taps)
        notes.append(
            f"the layer ids start at 1, so they count outputs: boundaries {list(taps)}; --tap-layers overrides"
        )
    else:
        later = ",".join(str(tap + 1) for tap in taps)
        notes.append(
            f"the layer ids {list(taps)} are read as boundaries, but might count outputs: measure also with "
            f"--tap-layers {later} and keep the better"
        )
    return taps
