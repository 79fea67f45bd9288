"""The whole way on the tiny target: prompts, answers, features, training, checkpoint, GGUF, and the runtime on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from eagle_edge_convert import convert_head
from tiny import HEAD, N_VOCAB

from eagle_edge.config import TargetParams
from eagle_edge.draft import Draft
from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.target import Target
from eagle_edge.template import ChatTemplate
from eagle_edge.train.answers import finished_shards
from eagle_edge.train.export import export_checkpoint
from eagle_edge.train.loop import Report
from eagle_edge.train.model import Head
from eagle_edge.train.params import DataParams, HeadParams, LoopParams, TrainParams
from eagle_edge.train.prompts import own_prompts, read_prompts, user_header
from eagle_edge.train.run import train
from eagle_edge.train.shards import from_bf16
from eagle_edge.train.streams import Job, run_jobs
from eagle_edge.train.target_weights import read_target_weights
from eagle_edge.train.unroll import Batch, unroll
from eagle_edge.train.vocabulary import choose

pytestmark = pytest.mark.native


class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str, done: float, text: str) -> None:
        assert 0 <= done <= 1

    def report(self, report: Report) -> None:
        pass


class Killed(Exception):  # noqa: N818
    """Ends a run in the middle, as a kill would."""


def tiny_run(target: Path, output: Path, prompts: Path) -> TrainParams:
    return TrainParams(
        target=str(target),
        output=str(output),
        data=DataParams(
            prompt_files=(str(prompts),),
            own_share=0.0,
            answer_tokens=300,
            max_prompt_tokens=40,
            max_answer_tokens=12,
            n_streams=6,
            n_likely=8,
            prompts_per_round=16,
        ),
        head=HeadParams(n_draft_vocab=64, taps=(2, 3, 5)),
        loop=LoopParams(n_steps=2, epochs=2, n_sequences=8, held_out=6, warmup_steps=2, n_threads=1),
    )


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say the word {i}"}) + "\n" for i in range(64)), encoding="utf-8")
    return path


def test_from_a_gguf_to_a_head_that_runs(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """One call leaves a GGUF the runtime loads, a checkpoint, plots and a card; calling again changes nothing."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    path = train(params, Silent())
    with Draft(path, tiny_target, n_ctx=64, n_threads=1) as draft:
        assert draft.config.n_draft_vocab == 64
    made = {name.name for name in (tmp_path / "run").iterdir()}
    assert {"head", "head-q8_0.gguf", "MODEL_CARD.md", "loss.png", "acceptance.png", "tau.png", "metrics.jsonl"} <= made
    before = path.read_bytes()
    assert train(params, Silent()).read_bytes() == before


def test_a_run_that_was_killed_while_answering_ends_with_the_same_data(
    tiny_target: Path, tmp_path: Path, prompts: Path
) -> None:
    """Shards of a run that was cut and taken up again are those of a run that was not."""

    class KilledLate(Silent):
        def stage(self, name: str, done: float, text: str) -> None:
            if name == "answers" and done > 0.8:
                raise Killed

    whole, cut = (tiny_run(tiny_target, tmp_path / name, prompts) for name in ("whole", "cut"))
    train(whole, Silent())
    with pytest.raises(Killed):
        train(cut, KilledLate())
    assert len(finished_shards(tmp_path / "cut" / "shards")) == 1
    train(cut, Silent())
    shards = [finished_shards(tmp_path / name / "shards") for name in ("whole", "cut")]
    assert len(shards[0]) == len(shards[1]) > 1
    for one, other in zip(*shards, strict=True):
        np.testing.assert_array_equal(np.load(one / "tokens.npy"), np.load(other / "tokens.npy"))


def test_a_folder_with_another_run_is_refused(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """What differs is named; more answers or another schedule are the same run."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    train(params, Silent())
    train(dataclasses.replace(params, loop=dataclasses.replace(params.loop, epochs=3)), Silent())
    with pytest.raises(EagleEdgeError, match="another head"):
        train(dataclasses.replace(params, head=HeadParams(n_draft_vocab=32)), Silent())


def test_too_few_prompts_are_one_line(tiny_target: Path, tmp_path: Path, prompts: Path) -> None:
    """Files that run out and prompts that do not fit are said, and what was answered stays."""
    params = tiny_run(tiny_target, tmp_path / "run", prompts)
    with pytest.raises(EagleEdgeError, match="used up"):
        train(dataclasses.replace(params, data=dataclasses.replace(params.data, answer_tokens=10_000)), Silent())
    assert len(finished_shards(tmp_path / "run" / "shards")) == 4
    prompts.write_text(json.dumps({"prompt": "word " * 200}) + "\n", encoding="utf-8")
    params = tiny_run(tiny_target, tmp_path / "long", prompts)
    with pytest.raises(EagleEdgeError, match="none got an answer"):
        train(params, Silent())


@pytest.fixture(scope="module")
def streams(tiny_target: Path) -> Iterator[Target]:
    params = TargetParams(n_ctx=96, n_batch=16, max_nodes=4, n_threads=1, streams=True)
    with Target(tiny_target, params) as target:
        target.set_taps((2, 3, 5))
        yield target


def jobs(n: int, temperature: float) -> Iterator[Job]:
    for number in range(n):
        rng = np.random.default_rng(number)
        ids = rng.integers(4, N_VOCAB, 3 + 5 * (number % 5)).tolist()
        yield Job(number, ids, len(ids), 6 + number % 7, temperature, rng)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_streams_say_what_one_sequence_says_alone(streams: Target, tiny_target: Path, temperature: float) -> None:
    """Tokens, taps and likely tokens do not depend on the neighbours, the stream or the time of the start."""
    together = sorted(run_jobs(streams, jobs(11, temperature), 8), key=lambda job: job.number)
    assert [job.number for job in together] == list(range(11))
    for job in together:
        alone = next(run_jobs(streams, (j for j in jobs(11, temperature) if j.number == job.number), 8))
        assert alone.ids == job.ids
        one, other = alone.passage(8), job.passage(8)
        np.testing.assert_allclose(from_bf16(one.taps), from_bf16(other.taps), rtol=2e-2, atol=1e-2)
        np.testing.assert_array_equal(one.likely_ids[:, 0], other.likely_ids[:, 0])
        assert one.answer.tolist() == [i >= job.n_prompt for i in range(len(job.ids) - 1)]


def test_greedy_answers_are_the_likeliest_tokens(streams: Target) -> None:
    """What was chosen is the first of the likely tokens of the position before."""
    for job in run_jobs(streams, jobs(6, 0.0), 8):
        passage = job.passage(8)
        n = job.n_prompt
        np.testing.assert_array_equal(passage.likely_ids[n - 1 :, 0], job.ids[n:])
        assert bool((passage.likely_logprobs[n - 1 :] <= 0).all())


def test_a_full_stream_is_refused(streams: Target) -> None:
    """Nothing reaches llama.cpp that it would abort on."""
    streams.clear_stream()
    for _ in range(6):
        streams.eval_streams([5] * 16, [1] * 16, [False] * 16)
    with pytest.raises(Exception, match="stream 1 is full"):
        streams.eval_streams([5], [1], [False])
    streams.clear_stream()


SWITCHES = [{}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True, "norm_output": True}]


@pytest.mark.parametrize("switches", SWITCHES)
def test_training_steps_are_the_runtimes_depths(switches: dict[str, bool], tiny_target: Path, tmp_path: Path) -> None:
    """Step s of training-time test on given tokens gives the logits of the runtime's draft at depth s."""
    torch.manual_seed(2)
    config = dataclasses.replace(HEAD, rms_eps=1e-5, **switches)  # type: ignore[arg-type]
    vocabulary = choose(np.random.default_rng(1).random(N_VOCAB), config.n_draft_vocab)
    head = Head(config, read_target_weights(tiny_target).embedding.float())
    export_checkpoint(head, vocabulary, tmp_path / "checkpoint")
    convert_head(tmp_path / "checkpoint", tiny_target, tmp_path / "head.gguf", "f32", check=False)

    rng = np.random.default_rng(3)
    tokens, row, n_steps = rng.integers(0, N_VOCAB, 12).astype(np.int32), 6, 4
    taps = rng.standard_normal((12, 3 * config.n_embd_target), np.float32)
    batch = Batch(torch.from_numpy(tokens)[None].long(), torch.from_numpy(taps)[None], torch.tensor([[row]]))
    with torch.no_grad():
        expected = [head.lm_head(hidden[0, 0]).numpy() for _, hidden in unroll(head, batch, n_steps)]

    with Draft(tmp_path / "head.gguf", tiny_target, n_ctx=64, n_threads=1) as draft:
        draft.extend(tokens[1 : row + 2], taps[: row + 1])
        np.testing.assert_allclose(draft.logits(-1), expected[0], atol=1e-3)
        for step in range(1, n_steps):
            draft.level(tokens[row + 1 + step : row + 2 + step], np.array([step - 2], np.int32), 1)
            np.testing.assert_allclose(draft.logits(step - 1), expected[step], atol=1e-3)


def test_prompts_are_read_from_the_usual_files(tmp_path: Path) -> None:
    """prompt, messages and conversations a line, or plain text; a broken line is named."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": " one "},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]},
        {"conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "answer"}]},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    assert read_prompts(path) == ["one", "two", "three"]
    (tmp_path / "plain.txt").write_text("four\n\nfive\n", encoding="utf-8")
    assert read_prompts(tmp_path / "plain.txt") == ["four", "five"]
    path.write_text('{"prompt": "one"}\n{broken\n', encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"prompts\.jsonl, line 2"):
        read_prompts(path)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(FileFormatError, match="no prompts"):
        read_prompts(tmp_path / "empty.txt")
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_prompts(tmp_path / "nothing.txt")


def test_the_user_header_is_what_precedes_the_message() -> None:
    """All that a template writes before the user's words, and an error where it shows none of them."""
    assert user_header(lambda text: f"<user>{text}<end><model>") == "<user>"
    with pytest.raises(EagleEdgeError, match="does not show"):
        user_header(lambda text: "<user><model>")


@pytest.mark.model
def test_the_packaged_model_writes_its_own_prompts(packaged_target: Path) -> None:
    """As many as wanted, all different, none seen before, and the same for the same seed."""
    params = TargetParams(n_ctx=160, n_batch=64, max_nodes=12, streams=True)
    with Target(packaged_target, params) as target:
        template = ChatTemplate.of(target)
        header = user_header(lambda text: "".join(s.text for s in template.render([{"role": "user", "content": text}])))
        seen: set[str] = set()
        first = own_prompts(target, header, 6, (0, 1), 48, True, seen)
        assert len(set(first)) == len(seen) == 6
        assert own_prompts(target, header, 6, (0, 1), 48, True, set()) == first
        assert not set(own_prompts(target, header, 3, (0, 1), 48, True, seen)) & set(first)
