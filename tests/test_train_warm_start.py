"""Going on from a head: its shape, draft vocabulary and weights are taken over, from every form it comes in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from eagle_edge_convert import convert_head
from test_train_run import Silent, prompts, tiny_run
from tiny import HEAD, N_VOCAB, make_head, make_target

from eagle_edge.errors import EagleEdgeError, PairError
from eagle_edge.gguf_header import read_header
from eagle_edge.head_format import HeadConfig
from eagle_edge.pair import read_draft_vocab
from eagle_edge.train.export import export_checkpoint
from eagle_edge.train.model import Head
from eagle_edge.train.run import train
from eagle_edge.train.target_weights import read_target_weights
from eagle_edge.train.vocabulary import Vocabulary, choose
from eagle_edge.train.warm_start import read_start

__all__ = ["prompts"]
pytestmark = pytest.mark.native

# A power of two comes back from the float32 of a GGUF as it was.
CONFIG = dataclasses.replace(HEAD, rms_eps=2**-17, norm_before_residual=True)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return choose(np.random.default_rng(1).random(N_VOCAB), CONFIG.n_draft_vocab)


@pytest.fixture(scope="module")
def checkpoint(
    tiny_target: Path, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Head]:
    torch.manual_seed(2)
    head = Head(CONFIG, read_target_weights(tiny_target).embedding)
    folder = tmp_path_factory.mktemp("head") / "checkpoint"
    export_checkpoint(head, vocabulary, folder)
    return folder, head


@pytest.mark.parametrize(("form", "tolerance"), [("folder", 0.0), ("f32", 0.0), ("f16", 1e-3), ("q8_0", 1e-2)])
def test_every_form_gives_the_same_head(
    form: str,
    tolerance: float,
    checkpoint: tuple[Path, Head],
    vocabulary: Vocabulary,
    tiny_target: Path,
    tmp_path: Path,
) -> None:
    """Weights come back as the checkpoint's, but for what the file's type cannot hold, and the original may go."""
    source, head = checkpoint
    if form != "folder":
        source = convert_head(source, tiny_target, tmp_path / "head.gguf", form).path
    start = read_start(source, tiny_target, tmp_path)
    assert start.config == CONFIG
    np.testing.assert_array_equal(start.ids, vocabulary.ids)
    assert start.weights.keys() == head.state_dict().keys()
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(start.weights[name], weight, atol=tolerance * float(weight.abs().max()), rtol=0)
    again = read_start(tmp_path / "gone.gguf", tiny_target, tmp_path)
    assert again.config == start.config


def test_training_goes_on_from_the_head(
    checkpoint: tuple[Path, Head], vocabulary: Vocabulary, tiny_target: Path, tmp_path: Path, prompts: Path
) -> None:
    """The new head has the old one's shape and vocabulary, and after a few steps at a low rate nearly its weights."""
    source, head = checkpoint
    params = dataclasses.replace(tiny_run(tiny_target, tmp_path / "run", prompts), start_from=str(source))
    loop = dataclasses.replace(params.loop, learning_rate=1e-5, epochs=1)
    header = read_header(train(dataclasses.replace(params, loop=loop), Silent()))
    assert HeadConfig.from_metadata(header) == CONFIG
    assert list(read_draft_vocab(CONFIG, header)) == vocabulary.ids.tolist()
    start = read_start(tmp_path / "run" / "head", tiny_target, tmp_path)
    for name, weight in head.state_dict().items():
        assert 0 < float((start.weights[name] - weight).abs().max()) < 1e-3, name
    assert "Started from checkpoint" in (tmp_path / "run" / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_a_head_to_start_from_can_be_narrowed(
    checkpoint: tuple[Path, Head], vocabulary: Vocabulary, tiny_target: Path, tmp_path: Path, prompts: Path
) -> None:
    """Of its tokens those stay that the answers have most of, in their old order, with their rows of the output."""
    source, head = checkpoint
    size = CONFIG.n_draft_vocab // 2
    counts = np.random.default_rng(3).random(N_VOCAB)
    start = read_start(source, tiny_target, tmp_path).narrowed(counts, size)
    kept = sorted(vocabulary.ids.tolist(), key=lambda token: -counts[token])[:size]
    assert start.ids.tolist() == [token for token in vocabulary.ids.tolist() if token in kept]
    for row, token in enumerate(start.ids.tolist()):
        whole = head.lm_head.weight[vocabulary.ids.tolist().index(token)]
        torch.testing.assert_close(start.weights["lm_head.weight"][row], whole, atol=0, rtol=0)
    run = dataclasses.replace(tiny_run(tiny_target, tmp_path / "run", prompts), start_from=str(source))
    header = read_header(train(dataclasses.replace(run, start_vocab=size), Silent()))
    assert HeadConfig.from_metadata(header) == dataclasses.replace(CONFIG, n_draft_vocab=size)
    assert set(read_draft_vocab(CONFIG, header)) < set(vocabulary.ids.tolist())
    assert start.narrowed(counts, size) is start


def test_an_eagle1_head_cannot_be_narrowed(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """It is said before anything is answered."""
    source = make_head(tmp_path / "eagle1.gguf", kind="eagle1", taps=(-1,), n_draft_vocab=N_VOCAB, own_output=False)
    run = dataclasses.replace(tiny_run(tiny_target, tmp_path / "run", prompts), start_from=str(source), start_vocab=8)
    with pytest.raises(PairError, match=r"eagle1\.gguf: an EAGLE-1 head proposes every token"):
        train(run, Silent())
    assert not (tmp_path / "run" / "shards").exists()


def test_a_head_that_does_not_fit_is_one_line(tiny_target: Path, tiny_head: Path, tmp_path: Path) -> None:
    """Another target's head, the target itself, and a head with an embedding of its own are refused by name."""
    wide = make_target(tmp_path / "wide.gguf", n_embd=96)
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    with pytest.raises(PairError, match="hidden states 64 wide, the target's are 96"):
        read_start(tiny_head, wide, tmp_path / "a")
    with pytest.raises(PairError, match="not a draft head"):
        read_start(tiny_target, tiny_target, tmp_path / "b")
    own = make_head(tmp_path / "own.gguf", own_embedding=True)
    with pytest.raises(PairError, match="embedding of its own"):
        read_start(own, tiny_target, tmp_path / "c")
    with pytest.raises(EagleEdgeError, match=r"nothing\.gguf"):
        read_start(tmp_path / "nothing.gguf", tiny_target, tmp_path / "a")


def test_a_head_without_an_output_matrix_gets_the_targets(tiny_target: Path, tmp_path: Path) -> None:
    """The rows of its draft vocabulary are what it has borrowed so far."""
    start = read_start(make_head(tmp_path / "head.gguf", own_output=False), tiny_target, tmp_path)
    torch.testing.assert_close(
        start.weights["lm_head.weight"].bfloat16(), read_target_weights(tiny_target).output[torch.from_numpy(start.ids)]
    )
