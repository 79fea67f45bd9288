"""The target's answers with everything a head is trained on, in rounds: some prompts, their answers, one shard.

What a round holds follows from the seed and its number alone, and its files appear when they are whole. So a run that
is killed repeats at most one round, and then goes on as if nothing had been.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..errors import EagleEdgeError, PairError
from ..target import Target
from ..template import ChatTemplate
from .params import DataParams
from .prompts import own_prompts, passage_prompts, prompt_key, read_prompts, user_header
from .shards import Corpus, write_shard
from .streams import Job, run_jobs

__all__ = ["Recorder", "finished_shards", "stream_context"]

# What a chat template and the task of a passage may add to a prompt.
TEMPLATE_TOKENS = 96


def finished_shards(folder: Path) -> list[Path]:
    """The whole shards in ``folder``, in the order of their rounds."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir() and path.suffix != ".partial")


def stream_context(data: DataParams) -> int:
    """Positions that one stream needs: the template's text, a prompt and its answer."""
    return _longest_prompt(data) + data.max_answer_tokens


def _longest_prompt(data: DataParams) -> int:
    passage = data.max_passage_tokens if data.own_share * data.passage_share > 0 else 0
    return TEMPLATE_TOKENS + max(data.max_prompt_tokens, passage)


class Recorder:
    """Has a target answer prompts, round by round.

    Args:
        target: opened for streams.
        template: its chat template.
        taps: boundaries to record.
        data: what to ask and how to answer.
        seed: of everything that is drawn.
        folder: prompts/ and shards/ are kept there.

    Raises:
        FileFormatError: a prompt file cannot be read.
        PairError: the template shows no user message although the target is to write prompts.
    """

    def __init__(
        self, target: Target, template: ChatTemplate, taps: tuple[int, ...], data: DataParams, seed: int, folder: Path
    ) -> None:
        self.target, self.template, self.taps, self.data, self.seed = target, template, taps, data, seed
        self.prompt_folder, self.shard_folder = folder / "prompts", folder / "shards"
        given = [prompt for path in data.prompt_files for prompt in read_prompts(Path(path))]
        order = np.random.default_rng((seed, 0)).permutation(len(given))
        self.given = [given[i] for i in order]
        if data.own_share > 0 and template.is_fallback:
            raise PairError(
                f"{target.path}: has no chat template, so it cannot write prompts itself; give files of prompts alone"
            )
        self.header = user_header(self._render) if data.own_share > 0 else ""

    def run(
        self,
        goal: Callable[[int, int], int],
        on_tokens: Callable[[int], None],
        on_prompts: Callable[[float, int], None],
        insist: bool = True,
    ) -> int:
        """Add rounds until the shards hold enough answer tokens; gives how many they hold.

        Args:
            goal: from the tokens held and the rounds they are of, how many tokens are enough; asked before each round.
            on_tokens: called with the tokens held so far after each answer.
            on_prompts: called while prompts are written with the share that is done, and the number before them.
            insist: prompts that run out are an error; otherwise what they gave is enough.

        Raises:
            EagleEdgeError: the prompt files are used up and the target is not to write its own, or a whole round of
                prompts got no answer.
        """
        shards = finished_shards(self.shard_folder)
        number, n_tokens = len(shards), Corpus(shards).n_answer_tokens()
        seen: set[str] = set()
        for earlier in range(number):
            seen.update(prompt_key(prompt) for prompt in self._load(earlier) or [])
        while n_tokens < goal(n_tokens, number):
            on_prompts(0.0, len(seen))
            prompts = self._load(number) or self._write(number, seen, on_prompts)
            if not prompts and number > 0 and not insist:
                break
            if not prompts:
                raise EagleEdgeError(
                    "the prompt files are used up before there are enough answers; give more, or raise own_share"
                )
            seen.update(map(prompt_key, prompts))
            on_prompts(1.0, len(seen))
            before, passages = n_tokens, []
            self.target.set_taps(self.taps)
            for job in run_jobs(self.target, self._jobs(number, prompts), self.data.n_likely):
                n_tokens += len(job.ids) - 1 - job.n_prompt
                passages.append((job.number, job.passage(self.data.n_likely)))
                on_tokens(n_tokens)
            if n_tokens == before:
                raise EagleEdgeError(
                    f"of {len(prompts)} prompts none got an answer: too long, or the target says nothing"
                )
            passages.sort(key=lambda entry: entry[0])
            write_shard(self.shard_folder / f"{number:05d}", [passage for _, passage in passages])
            number += 1
        return n_tokens

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _load(self, number: int) -> list[str] | None:
        path = self.prompt_folder / f"{number:05d}.jsonl"
        return read_prompts(path) if path.exists() else None

    def _write(self, number: int, seen: set[str], on_prompts: Callable[[float, int], None]) -> list[str]:
        """The prompts of a round: its share of the given ones, and the target's own, some about its earlier answers.

        None at all when the files are used up and the target writes none.
        """
        data = self.data
        n_given = round((1 - data.own_share) * data.prompts_per_round)
        prompts = self.given[number * n_given : (number + 1) * n_given]
        if data.own_share > 0:
            self.target.set_taps(())
            if number > 0:
                earlier = Corpus([self.shard_folder / f"{number - 1:05d}"])
                wanted, seed = round(data.passage_share * data.prompts_per_round), (self.seed, 3, number)
                prompts = prompts + passage_prompts(self.target, earlier, wanted, seed, data.max_passage_tokens, seen)
            wanted, seed = data.prompts_per_round - len(prompts), (self.seed, 1, number)
            before = len(seen)
            prompts = prompts + own_prompts(
                self.target,
                self.header,
                wanted,
                seed,
                min(data.max_own_tokens, data.max_prompt_tokens),
                data.openers,
                seen,
                lambda share: on_prompts(share, before),
            )
        if not prompts:
            return []
        self.prompt_folder.mkdir(parents=True, exist_ok=True)
        path = self.prompt_folder / f"{number:05d}.jsonl"
        partial = path.with_name(path.name + ".partial")
        partial.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
        os.replace(partial, path)
        return prompts

    def _render(self, message: str) -> str:
        segments = self.template.render([{"role": "user", "content": message}])
        return "".join(segment.text for segment in segments)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _jobs(self, number: int, prompts: list[str]) -> Iterator[Job]:
        data = self.data
        for index, prompt in enumerate(prompts):
            rng = np.random.default_rng((self.seed, 2, number, index))
            greedy = rng.random() < data.greedy_share
            temperature = 0.0 if greedy else float(rng.choice(data.temperatures))
            ids = self.template.encode([{"role": "user", "content": prompt}])
            if len(ids) <= _longest_prompt(data):
                yield Job(index, ids, len(ids), data.max_answer_tokens, temperature, rng)
