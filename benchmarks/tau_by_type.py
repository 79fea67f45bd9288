"""Tau of the packaged head on the packaged model, dequantised, saved as a Hugging Face folder and converted back.

    python benchmarks/tau_by_type.py QUESTIONS [--types f16 q8_0 q4_0 q4_k_m] [--sets mt_bench,gsm8k,humaneval]

QUESTIONS is a folder of question sets (*.jsonl). Each type is converted, checked against its source in transformers,
and generates with the tree 60/7/10 at temperature 0. Prints a row of Markdown a type; it needs the development tools,
and a few minutes on two free cores. Give --limit 5 -n 128 for figures that say more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from eagle_edge_convert import convert_target
from eagle_edge_convert.proof import Proof

from eagle_edge.config import DraftParams, SamplingParams, TargetParams
from eagle_edge.engine import Engine
from eagle_edge.models import default_head, default_target
from eagle_edge.questions import Question, load_questions
from eagle_edge.template import ChatTemplate


def tau_by_set(target: Path, head: Path, questions: list[Question], n_tokens: int) -> dict[str, float]:
    """Tokens per target evaluation over the questions of each set, and over all of them."""
    rounds, kept = defaultdict(int), defaultdict(int)
    params = SamplingParams(max_tokens=n_tokens)
    with Engine(target, head, TargetParams(n_ctx=2048), draft_params=DraftParams(60, 7, 10)) as engine:
        template = ChatTemplate.of(engine.target)
        for number, question in enumerate(questions, 1):
            engine.reset()
            stats = engine.complete(template.encode([{"role": "user", "content": question.text}]), params).stats
            for name in (question.set, "all"):
                rounds[name] += stats.rounds
                kept[name] += stats.draft_n_accepted
            sys.stderr.write(f"\r{target.stem}: question {number} of {len(questions)} ")
    sys.stderr.write("\n")
    return {name: 1 + kept[name] / rounds[name] for name in rounds}


def main() -> None:
    """Convert, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0", "q4_0", "q4_k_m"])
    parser.add_argument("--sets", default="mt_bench,gsm8k,humaneval")
    parser.add_argument("--limit", type=int, default=3, help="questions of each set")
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    parser.add_argument("--head", type=Path, default=default_head())
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from hf_models import save_folder

    sets = options.sets.split(",")
    questions = load_questions(options.questions, sets, options.limit)
    sys.stdout.write(f"| type | MB | top-1 agreement with the source | {' | '.join(sets)} | all |\n")
    sys.stdout.write("|---" * (len(sets) + 4) + "|\n")
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_folder(default_target(), Path(scratch) / "smollm2")
        for quantize in options.types:
            result = convert_target(folder, Path(scratch) / f"{quantize}.gguf", quantize)
            agreement = f"{result.proof.top1_agreement:.0%}" if isinstance(result.proof, Proof) else str(result.proof)
            tau = tau_by_set(result.path, options.head, questions, options.max_tokens)
            figures = " | ".join(f"{tau[name]:.2f}" for name in (*sets, "all"))
            sys.stdout.write(f"| {quantize} | {result.n_bytes / 1e6:.0f} | {agreement} | {figures} |\n")
            sys.stdout.flush()
            result.path.unlink()


if __name__ == "__main__":
    main()
