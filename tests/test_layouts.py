"""Every layout of a head: converted, run natively, equal to a torch reference of what its trainer computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

torch = pytest.importorskip("torch")
import checkpoints  # noqa: E402
from checkpoints import (  # noqa: E402
    IDS,
    OUTPUTS,
    TAPS,
    E,
    Layout,
    R,
    layouts,
    make_tensors,
    midlayer,
    sizes,
    speculators,
    target_embedding,
)
from eagle_edge_convert import convert_head, head_proof_process  # noqa: E402
from eagle_edge_convert.head_reference import HeadReference, Maths  # noqa: E402
from llama_eagle3 import chain_logits  # noqa: E402

from eagle_edge.config import DraftParams  # noqa: E402
from eagle_edge.draft import Draft  # noqa: E402
from eagle_edge.gguf_header import read_header  # noqa: E402
from eagle_edge.pair import pair_differences  # noqa: E402

pytestmark = pytest.mark.native

TOLERANCE = 1e-3
N_PAIRS = 7
LEVELS = [range(3), range(3, 6), range(6, 9)]
PARENTS = [-1, -1, -1, 0, 0, 2, 3, 5, 3]
NAMES = tuple(layouts())


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target") / "target.gguf", n_layer=checkpoints.N_LAYER)


def reference(layout: Layout, draft_ids: Any) -> HeadReference:
    """The layout's published mathematics, with what it borrows from the target."""
    theirs = tiny.target_tensors(n_layer=checkpoints.N_LAYER)
    embedding = layout.tensors.get("embed_tokens.weight", theirs["token_embd.weight"])
    output = layout.tensors.get("lm_head.weight", theirs["output.weight"][draft_ids])
    table, matrix = torch.as_tensor(embedding), torch.as_tensor(output)
    return HeadReference(layout.maths, layout.tensors, lambda ids: table[ids], lambda: matrix)


def expected_ids(layout: Layout) -> Any:
    d2t = layout.tensors.get("d2t")
    if layout.maths.eagle1 or d2t is None or len(d2t) == tiny.N_VOCAB:
        return np.arange(tiny.N_VOCAB)
    return d2t.numpy() + np.arange(len(d2t))


@pytest.mark.parametrize("name", NAMES)
def test_a_converted_head_computes_what_its_trainer_did(name: str, target: Path, tmp_path: Path) -> None:
    """Logits and fed-back states equal the reference over a prompt and a tree three levels deep."""
    layout = layouts()[name]
    result = convert_head(layout.write(tmp_path / "checkpoint"), target, tmp_path / "head.gguf", "f32", check=False)
    assert (-1,) if layout.maths.eagle1 else layout.taps == result.config.taps
    assert pair_differences(read_header(result.path), read_header(target)) == []
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, tiny.N_VOCAB, N_PAIRS + len(PARENTS)).astype(np.int32)
    taps = (2 * rng.standard_normal((N_PAIRS, len(result.config.taps) * E))).astype(np.float32)
    with Draft(result.path, target, n_ctx=64, n_threads=1, params=DraftParams(20, 4, 5)) as draft:
        assert expected_ids(layout).tolist() == draft.vocab.tolist()
        oracle = reference(layout, draft.vocab)
        causal = torch.ones(N_PAIRS, N_PAIRS, dtype=torch.bool).tril()
        logits, states = oracle.add(
            torch.from_numpy(tokens[:N_PAIRS]).long(), torch.arange(N_PAIRS), causal, taps=torch.from_numpy(taps)
        )
        draft.extend(tokens[:N_PAIRS], taps)
        close(draft, -1, logits[-1], states[-1])
        walk_tree(draft, oracle, tokens[N_PAIRS:], states[-1])


def walk_tree(draft: Draft, oracle: HeadReference, tokens: Any, root_state: Any) -> None:
    states = {-1: root_state}
    for depth, level in enumerate(LEVELS):
        draft.level(tokens[list(level)], np.array([PARENTS[node] for node in level]), 5)
        visible = torch.zeros(len(level), N_PAIRS + level.stop, dtype=torch.bool)
        visible[:, :N_PAIRS] = True
        for row, node in enumerate(level):
            above = node
            while above >= 0:
                visible[row, N_PAIRS + above] = True
                above = PARENTS[above]
        logits, new = oracle.add(
            torch.from_numpy(tokens[list(level)]).long(),
            torch.full((len(level),), N_PAIRS + depth),
            visible,
            states=torch.stack([states[PARENTS[node]] for node in level]),
        )
        for row, node in enumerate(level):
            states[node] = new[row]
            close(draft, node, logits[row], new[row])


def close(draft: Draft, node: int, logits: Any, state: Any) -> None:
    np.testing.assert_allclose(draft.logits(node), logits.numpy(), atol=TOLERANCE)
    np.testing.assert_allclose(draft.hidden(node), state.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_the_check_reads_a_checkpoint_as_its_trainer_does(name: str, target: Path, tmp_path: Path) -> None:
    """What the converter compares with is the layout's own mathematics, and the engine's logits are equal to it."""
    layout = layouts()[name]
    checkpoint = layout.write(tmp_path / "checkpoint")
    config = convert_head(checkpoint, target, tmp_path / "head.gguf", "f32", check=False).config
    scaling = layout.config.get("rope_scaling")
    assert layout.maths == Maths.of(config, scaling if config.rope_factors else None)
    files = {"checkpoint": str(checkpoint), "target": str(target), "file": str(tmp_path / "head.gguf")}
    answer = head_proof_process.run({**files, "random_because": ""})
    assert answer["relative_error"] < 1e-4
    assert answer["top1_agreement"] == 1
    assert answer["n_nodes"] == 6


EXPRESSIBLE = (
    "safeailab_eagle3",
    "safeailab_eagle3_wider_target",
    "safeailab_eagle3_full_vocabulary",
    "specforge",
    "specforge_llama3_rope",
    "speculators_eagle3",
    "speculators_trained_embedding",
    "angelslim",
    "modelopt",
    "modelopt_gpt_oss",
)


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_llama_cpp_computes_the_same(name: str, target: Path, tmp_path: Path) -> None:
    """What llama.cpp's own eagle3 graph can express gives the same logits there, over a prompt and a fed-back chain."""
    result = convert_head(
        layouts()[name].write(tmp_path / "checkpoint"), target, tmp_path / "head.gguf", "f32", check=False
    )
    assert result.config.architecture == "eagle3"
    rng = np.random.default_rng(9)
    tokens = rng.integers(0, tiny.N_VOCAB, N_PAIRS + 3).astype(np.int32)
    taps = (2 * rng.standard_normal((N_PAIRS, 3 * E))).astype(np.float32)
    theirs = chain_logits(result.path, target, tokens, taps, 3)
    with Draft(result.path, target, n_ctx=64, n_threads=1, params=DraftParams(20, 4, 5)) as draft:
        draft.extend(tokens[:N_PAIRS], taps)
        for step in range(4):
            if step:
                draft.level(tokens[N_PAIRS + step - 1 : N_PAIRS + step], np.array([step - 2]), 1)
            np.testing.assert_allclose(draft.logits(step - 1), theirs[step][draft.vocab], atol=TOLERANCE)
        outside = np.setdiff1d(np.arange(tiny.N_VOCAB), draft.vocab)
        assert np.isneginf(theirs[:, outside]).all()


def test_one_head_saved_in_eight_ways_is_one_file(target: Path, tmp_path: Path) -> None:
    """Names, nesting, files, architecture and layer count do not matter: the GGUF is the same to the byte."""
    tensors = make_tensors()
    plain = sizes(draft_vocab_size=R, rope_theta=10000.0)
    outputs = {"eagle_config": {IDS: OUTPUTS}}
    embedding = {"embed_tokens.weight": target_embedding()}
    ways = {
        "safeailab": Layout(tensors, {**plain, "architectures": ["LlamaForCausalLM"]}, rename=midlayer, save="bin"),
        "specforge": Layout(
            tensors, {**plain, **outputs, "architectures": ["LlamaForCausalLMEagle3"]}, rename=midlayer
        ),
        "speculators": Layout(
            {**tensors, **embedding},
            speculators({"rope_theta": 10000.0}, norm_before_residual=False, **{IDS: list(TAPS)}),
        ),
        "newer_speculators": Layout(
            tensors,
            speculators(
                {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
                norm_before_residual=False,
                architectures=["Eagle3DraftModel"],
            ),
            save="shards",
        ),
        "angelslim": Layout(
            {**tensors, **embedding},
            {
                **plain,
                "aux_hidden_states_layer_ids": OUTPUTS,
                "rope_theta": 1e6,
                "architectures": ["Eagle3LlamaForCausalLM"],
            },
            rename=midlayer,
            save="bin",
        ),
        "modelopt": Layout(tensors, {**plain, **outputs, "num_hidden_layers": 40}, drop=("t2d",)),
        "nemo": Layout(tensors, {**plain, **outputs, "num_hidden_layers": 36}, rename=lambda name: f"model.{name}"),
        "int32_map": Layout({**tensors, "d2t": tensors["d2t"].int()}, plain, rename=midlayer, save="shards"),
    }
    files = set()
    for name, layout in ways.items():
        folder = layout.write(tmp_path / name)
        files.add(convert_head(folder, target, tmp_path / f"{name}.gguf", check=False).path.read_bytes())
    assert len(files) == 1
