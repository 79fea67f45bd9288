"""The whole way on the tiny target: prompts, answers, features, training, checkpoint, GGUF, and the runtime on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from eagle_edge_convert import convert_head
from tiny import N_VOCAB

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.draft import Draft
from eagle_edge.engine import Engine
from eagle_edge.equality import PLAIN
from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.gguf_header import read_header
from eagle_edge.head_format import HeadConfig
from eagle_edge.target import Target
from eagle_edge.template import ChatTemplate
from eagle_edge.train.answers import Recorder, finished_shards
from eagle_edge.train.export import export_checkpoint
from eagle_edge.train.likeliest import Likeliest
from eagle_edge.train.model import Head
from eagle_edge.train.params import DataParams, HeadParams, LoopParams, TrainParams
from eagle_edge.train.prompts import TASKS, own_prompts, passage_prompts, read_prompts, user_header
from eagle_edge.train.recipes import RECIPES
from eagle_edge.train.run import head_config, train
from eagle_edge.train.shards import Corpus, from_bf16, write_shard
from eagle_edge.train.streams import Job, run_jobs
from eagle_edge.train.target_weights import read_target_weights
from eagle_edge.train.unroll import Batch, unroll
from eagle_edge.train.vocabulary import choose
from eagle_edge.train.watching import Report

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


@pytest.mark.parametrize(("recipe", "taps"), [("eagle3", (3,)), ("eagle3.1", (2, 3, 5)), ("eagle1", (-1,))])
def test_every_recipe_goes_the_whole_way(
    recipe: str, taps: tuple[int, ...], tiny_target: Path, tmp_path: Path, prompts: Path
) -> None:
    """Recording, training, export and conversion leave a head of that kind, and the engine says what it says alone."""
    base, params = RECIPES[recipe], tiny_run(tiny_target, tmp_path / "run", prompts)
    n_draft = 0 if recipe == "eagle1" else 64
    path = train(
        dataclasses.replace(
            params,
            recipe=recipe,
            head=dataclasses.replace(base.head, taps=taps, n_draft_vocab=n_draft),
            loop=dataclasses.replace(base.loop, epochs=1, n_sequences=8, held_out=6, warmup_steps=2, n_threads=1),
        ),
        Silent(),
    )
    assert f"# {base.title} draft head" in (tmp_path / "run" / "MODEL_CARD.md").read_text(encoding="utf-8")
    config = HeadConfig.from_metadata(read_header(str(path)))
    assert (config.kind, config.taps) == (base.head.kind, taps)
    tree = DraftParams(total=8, depth=2, top_k=2)
    with Engine(tiny_target, path, TargetParams(n_ctx=128, n_threads=1), draft_params=tree) as engine:
        ids = list(range(4, 84))  # more than the rows of logits that one evaluation can give
        drafted, plain = (engine.complete(ids, SamplingParams(max_tokens=12), how) for how in (tree, PLAIN))
    assert drafted.token_ids == plain.token_ids


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
    settings = TargetParams(n_ctx=160, max_nodes=6, streams=True)
    with Target(tiny_target, settings) as target:
        recorder = Recorder(target, ChatTemplate.of(target), (2, 3, 5), params.data, 0, tmp_path / "run")
        n_tokens = Corpus(finished_shards(tmp_path / "run" / "shards")).n_answer_tokens()
        found = recorder.run(lambda n, rounds: 10**9, lambda n: None, lambda done, n: None, insist=False)
    assert found == n_tokens
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


@pytest.mark.parametrize("n_vocab", [N_VOCAB, 300])
def test_the_likeliest_tokens_are_those_of_a_full_sort(streams: Target, n_vocab: int) -> None:
    """Tokens and log-probabilities, best first, also where the vocabulary does not fill its last group."""

    class Cut:
        """The same rows of a smaller vocabulary."""

        def logits(self, row: int) -> np.ndarray:
            return evaluation.logits(row)[:n_vocab]

    streams.clear_stream()
    evaluation = streams.eval_streams([5, 9, 77], [0, 1, 2], [True] * 3)
    likeliest = Likeliest(4, n_vocab)
    for rows, k in [((2, 0), 8), ((0, 1, 2), 64), ((1,), 1)]:
        ids, logprobs = likeliest.find(Cut(), rows, k)  # type: ignore[arg-type]
        logits = torch.from_numpy(np.stack([evaluation.logits(row)[:n_vocab] for row in rows]))
        expected = logits.log_softmax(1).topk(k)
        np.testing.assert_array_equal(ids, expected.indices.numpy())
        np.testing.assert_allclose(logprobs, expected.values.numpy(), atol=1e-4)
    streams.clear_stream()


def test_a_full_stream_is_refused(streams: Target) -> None:
    """Nothing reaches llama.cpp that it would abort on."""
    streams.clear_stream()
    for _ in range(6):
        streams.eval_streams([5] * 16, [1] * 16, [False] * 16)
    with pytest.raises(Exception, match="stream 1 is full"):
        streams.eval_streams([5], [1], [False])
    streams.clear_stream()


def test_prompts_about_earlier_answers_hold_them(streams: Target, tmp_path: Path) -> None:
    """A task, then what was answered, each answer at most once; the seed decides which, and no prompt comes twice."""
    passages = [job.passage(8) for job in run_jobs(streams, jobs(40, 1.0), 8)]
    write_shard(tmp_path / "00000", passages)
    corpus, seen = Corpus([tmp_path / "00000"]), set[str]()
    first = passage_prompts(streams, corpus, 5, (0, 3, 1), 24, seen)
    assert len(set(first)) == len(seen) == 5
    assert first == passage_prompts(streams, corpus, 5, (0, 3, 1), 24, set())
    assert not set(first) & set(passage_prompts(streams, corpus, 5, (0, 3, 1), 24, seen))
    answers = [b"".join(map(streams.piece, p.tokens[p.answer].tolist())).decode("utf-8", "ignore") for p in passages]
    for prompt in first:
        task = next(task for task in TASKS if prompt.startswith(task))
        assert any(prompt.removeprefix(task).strip()[:4] in answer for answer in answers)
    assert len(passage_prompts(streams, corpus, 1000, (0, 3, 2), 24, set())) < 40


HEADS = {
    **{name: recipe.head for name, recipe in RECIPES.items()},
    "raw residual": HeadParams(norm_before_residual=False),
    "one norm before fc": HeadParams(norm_before_fc=True),
    "one tap": HeadParams(taps=(3,)),
}


@pytest.mark.parametrize("name", HEADS)
def test_training_steps_are_the_runtimes_depths(name: str, tiny_target: Path, tmp_path: Path) -> None:
    """Step s of training-time test on given tokens gives the logits of the runtime's draft at depth s."""
    torch.manual_seed(2)
    weights, chosen = read_target_weights(tiny_target), HEADS[name]
    n_draft = N_VOCAB if chosen.kind == "eagle1" else 128
    config = head_config(TrainParams("", "", head=chosen), chosen.taps or (2, 3, 5), weights, n_draft)
    vocabulary = choose(np.random.default_rng(1).random(N_VOCAB), n_draft)
    exact = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(tiny_target).tensors}
    head = Head(config, exact["token_embd.weight"], exact["output.weight"])
    export_checkpoint(head, vocabulary, tmp_path / "checkpoint")
    convert_head(tmp_path / "checkpoint", tiny_target, tmp_path / "head.gguf", "f32", check=False)

    rng = np.random.default_rng(3)
    tokens, row, n_steps = rng.integers(0, N_VOCAB, 12).astype(np.int32), 6, 4
    taps = rng.standard_normal((12, len(config.taps) * config.n_embd_target), np.float32)
    batch = Batch(torch.from_numpy(tokens)[None].long(), torch.from_numpy(taps)[None], torch.tensor([[row]]))
    with torch.no_grad():
        expected = [(head.output @ hidden[0, 0]).numpy() for _, hidden in unroll(head, batch, n_steps)]

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
    path.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b"]
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
        assert max(len(target.tokenize(prompt, add_special=False)) for prompt in first) <= 48 + 8  # an opening is given
        assert not set(own_prompts(target, header, 3, (0, 1), 48, True, seen)) & set(first)
