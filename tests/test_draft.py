"""The native draft against the NumPy reference, for every switch of the format."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny
from reference_head import ReferenceHead

from eagle_edge.config import DraftParams
from eagle_edge.draft import Draft
from eagle_edge.head_format import HeadConfig, RopeScaling
from eagle_edge.same_noise import Noise

pytestmark = pytest.mark.native

TOLERANCE = 1e-3
N_PAIRS = 7
EAGLE1 = {"kind": "eagle1", "taps": (-1,), "n_draft_vocab": tiny.N_VOCAB}

VARIANTS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "borrowed_output": {"own_output": False},
    "own_embedding": {"own_embedding": True},
    "full_vocabulary": {"n_draft_vocab": tiny.N_VOCAB},
    "narrower_than_target": {"n_embd": 32, "n_head": 4, "head_dim": 16, "own_embedding": True},
    "odd_head_dim": {"n_embd": 96, "n_head": 8, "n_head_kv": 4, "head_dim": 32, "own_embedding": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "eagle31": {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
    "fc_bias": {"fc_bias": True},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "qk_norm": {"qk_norm": True},
    "qk_norm_and_biases": {"qk_norm": True, "qkv_bias": True},
    "one_tap": {"taps": (4,)},
    "four_taps": {"taps": (1, 2, 4, 6)},
    "no_fc": {"taps": (-1,), "fc": False},
    "two_layers": {"n_layer": 2},
    "sliding_window": {"sliding_window": 4},
    "rope_theta": {"rope_theta": 500000.0},
    "rope_linear": {"rope_scaling": RopeScaling("linear", 4.0, 512)},
    "rope_yarn": {"rope_scaling": RopeScaling("yarn", 8.0, 64)},
    "rope_llama3": {"rope_factors": True},
    "eagle1": EAGLE1,
    "eagle1_biases": {**EAGLE1, "fc_bias": True, "qkv_bias": True},
    "eagle1_two_layers": {**EAGLE1, "n_layer": 2},
}


@dataclasses.dataclass
class Case:
    """A head on disk with its reference, and inputs for both."""

    draft: Draft
    reference: ReferenceHead
    tokens: npt.NDArray[np.int32]
    taps: npt.NDArray[np.float32]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target") / "target.gguf")


def make_case(
    folder: Path,
    target: Path,
    *,
    own_output: bool | None = None,
    own_embedding: bool = False,
    quant: str = "F32",
    **switches: Any,
) -> Case:
    config = dataclasses.replace(tiny.HEAD, **switches)
    own = config.kind != "eagle1" if own_output is None else own_output
    tensors = tiny.head_tensors(config, own_output=own, own_embedding=own_embedding)
    path = tiny.write_head(folder / "head.gguf", config, tensors, quant=quant)
    theirs = tiny.target_tensors()
    rows = tensors.get("d2t", np.arange(config.n_vocab))
    embedding = tensors.get("token_embd.weight", theirs["token_embd.weight"])
    output = tensors.get("output.weight", theirs["output.weight"][rows])
    draft = Draft(path, target, n_ctx=300, n_threads=2, params=DraftParams(60, 7, 10))
    rng = np.random.default_rng(7)
    width = len(config.taps) * config.n_embd_target
    return Case(
        draft,
        ReferenceHead(config, tensors, embedding, output),
        rng.integers(0, config.n_vocab, 64).astype(np.int32),
        (2 * rng.standard_normal((64, width))).astype(np.float32),
    )


def commit(case: Case, n: int) -> tuple[Any, Any]:
    """Commit the first ``n`` pairs on both sides; the reference's logits and state of the last."""
    for position in range(n):
        result = case.reference.add(int(case.tokens[position]), position, range(position), taps=case.taps[position])
    case.draft.extend(case.tokens[:n], case.taps[:n])
    return result


def log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize("name", VARIANTS)
def test_head_equals_reference(name: str, tmp_path: Path, target: Path) -> None:
    """Logits, states and children equal the reference over a prompt and a tree three levels deep, for each variant."""
    case = make_case(tmp_path, target, **VARIANTS[name])
    logits, state = commit(case, N_PAIRS)
    np.testing.assert_allclose(case.draft.logits(-1), logits, atol=TOLERANCE)
    np.testing.assert_allclose(case.draft.hidden(-1), state, atol=TOLERANCE)

    parents = [-1, -1, -1, 0, 0, 2, 3, 5, 3]
    levels = [range(3), range(3, 6), range(6, 9)]
    tokens = case.tokens[N_PAIRS : N_PAIRS + len(parents)]
    states, depths = {-1: state}, {-1: -1}
    for level in levels:
        nodes = np.array(level)
        ids, logprobs = case.draft.level(tokens[nodes], np.array(parents)[nodes], 5)
        for row, node in enumerate(nodes):
            depths[node] = depths[parents[node]] + 1
            ancestors, above = [], parents[node]
            while above >= 0:
                ancestors.append(N_PAIRS + above)
                above = parents[above]
            visible = [*range(N_PAIRS), *ancestors]
            expected, states[node] = case.reference.add(
                int(tokens[node]), N_PAIRS + depths[node], visible, state=states[parents[node]]
            )
            np.testing.assert_allclose(case.draft.logits(node), expected, atol=TOLERANCE)
            np.testing.assert_allclose(case.draft.hidden(node), states[node], atol=TOLERANCE)
            best = np.argsort(-expected)[:5]
            assert case.draft.vocab[best].tolist() == ids[row].tolist()
            np.testing.assert_allclose(logprobs[row], log_softmax(expected)[best], atol=TOLERANCE)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_quantised_head_is_close(quant: str, tmp_path: Path, target: Path) -> None:
    """A quantised head gives nearly the logits of its f32 twin."""
    exact = make_case(tmp_path, target)
    close = make_case(tmp_path, target, quant=quant)
    for case in (exact, close):
        case.draft.extend(case.tokens[:N_PAIRS], case.taps[:N_PAIRS])
    limit = {"Q8_0": 0.05, "Q4_0": 0.4, "F16": 0.01, "BF16": 0.05}[quant]
    a, b = exact.draft.logits(-1), close.draft.logits(-1)
    assert np.abs(a - b).max() < limit * np.abs(a).max()


def test_a_level_does_not_depend_on_its_company(tmp_path: Path, target: Path) -> None:
    """Nodes evaluated one by one have the children they have when evaluated together."""
    case = make_case(tmp_path, target)
    commit(case, N_PAIRS)
    tokens = case.tokens[:10]
    together = case.draft.level(tokens, np.full(10, -1), 4)
    case.draft.rewind(N_PAIRS)
    for i, token in enumerate(tokens):
        ids, logprobs = case.draft.level(np.array([token]), np.array([-1]), 4)
        assert together[0][i].tolist() == ids[0].tolist()
        np.testing.assert_allclose(logprobs[0], together[1][i], atol=1e-4)


@pytest.mark.parametrize("cuts", [(1, 2, 4), (6,), (30, 31, 63)])
def test_extending_in_chunks_equals_one_extension(cuts: tuple[int, ...], tmp_path: Path, target: Path) -> None:
    """The state after several extensions is that of one extension."""
    case = make_case(tmp_path, target)
    end = cuts[-1] + 1
    case.draft.extend(case.tokens[:end], case.taps[:end])
    whole = case.draft.logits(-1)
    case.draft.rewind(0)
    for start, stop in zip((0, *cuts), (*cuts, end), strict=True):
        case.draft.extend(case.tokens[start:stop], case.taps[start:stop], last=stop == end)
    np.testing.assert_allclose(case.draft.logits(-1), whole, atol=1e-4)


def test_more_pairs_than_one_graph_holds(tmp_path: Path, target: Path) -> None:
    """A prompt longer than the largest graph gives the same state as the prompt in two parts."""
    case = make_case(tmp_path, target)
    tokens, taps = np.tile(case.tokens, 10)[:600], np.tile(case.taps, (10, 1))[:600]
    with Draft(tmp_path / "head.gguf", target, n_ctx=600, n_threads=2) as draft:
        draft.extend(tokens, taps)
        whole = draft.logits(-1)
        draft.rewind(0)
        draft.extend(tokens[:333], taps[:333], last=False)
        draft.extend(tokens[333:], taps[333:])
        np.testing.assert_allclose(draft.logits(-1), whole, atol=1e-4)


def test_rewinding_leaves_no_trace(tmp_path: Path, target: Path) -> None:
    """After a tree, a rewind and other pairs, extending again gives what a fresh draft gives."""
    case = make_case(tmp_path, target)
    case.draft.extend(case.tokens[:20], case.taps[:20])
    fresh = case.draft.logits(-1)
    case.draft.propose(int(case.tokens[19]), DraftParams(40, 4, 8), 100)
    case.draft.rewind(10)
    case.draft.extend(case.tokens[40:45], case.taps[40:45])
    case.draft.propose(3, DraftParams(40, 4, 8), 100)
    case.draft.rewind(10)
    case.draft.extend(case.tokens[10:20], case.taps[10:20])
    np.testing.assert_allclose(case.draft.logits(-1), fresh, atol=1e-4)


def test_tree_crosses_a_cache_step(tmp_path: Path, target: Path) -> None:
    """A tree that grows over the cache size graphs are built for keeps its meaning."""
    case = make_case(tmp_path, target)
    tokens, taps = np.tile(case.tokens, 4)[:250], np.tile(case.taps, (4, 1))[:250]
    case.draft.extend(tokens, taps)
    parents = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    for i, parent in enumerate(parents):
        case.draft.level(case.tokens[i : i + 1], np.array([parent]), 1)
    chain = case.draft.logits(9)
    for position in range(250):
        _, state = case.reference.add(int(tokens[position]), position, range(position), taps=taps[position])
    for i in range(10):
        logits, state = case.reference.add(int(case.tokens[i]), 250 + i, range(250 + i), state=state)
    np.testing.assert_allclose(chain, logits, atol=TOLERANCE)


@pytest.mark.parametrize("reach", [math.inf, 1.0, 0.0])
def test_noise_makes_the_draft_guess_a_sample(tmp_path: Path, target: Path, reach: float) -> None:
    """With noise, a chain follows the argmax of logits plus the noise of each depth, of those that are within reach."""
    case = make_case(tmp_path, target)
    draft = case.draft
    values = np.random.default_rng(2).gumbel(size=(8, 128)).astype(np.float32)
    noise = Noise(lambda depth: values[depth], reach)
    noise.perturb(draft, 1)
    draft.extend(case.tokens[:9], case.taps[:9])
    tree = draft.propose(5, DraftParams.chain(5), 100, noise)
    noise.stop(draft)
    score = 0.0
    for depth in range(1, 6):
        logits = draft.logits(depth - 2)
        perturbed = np.where(logits >= logits.max() - reach - 1e-5, logits + values[depth], -np.inf)
        assert tree.tokens[depth] == draft.vocab[perturbed.argmax()]
        score += log_softmax(perturbed).max()
        assert tree.logprob[depth] == pytest.approx(score, abs=1e-3)
    draft.rewind(0)
    draft.extend(case.tokens[:9], case.taps[:9])
    plain = draft.propose(5, DraftParams.chain(5), 100)
    assert plain.tokens[1] == draft.vocab[draft.logits(-1).argmax()]
    assert plain.tokens[2] == draft.vocab[draft.logits(0).argmax()]
    draft.perturb(np.where(np.arange(128) < 3, 0, -np.inf).astype(np.float32))
    draft.rewind(0)
    draft.extend(case.tokens[:9], case.taps[:9])
    assert np.all(np.isfinite(draft.first[1]))  # what is banned is hopeless, and still a number to reckon with
    noise.stop(draft)
    with pytest.raises(ValueError, match="128 values, not 3"):
        draft.propose(5, DraftParams(8, 2, 2), 100, Noise(lambda depth: values[depth, :3]))


def test_impossible_calls_are_refused(tmp_path: Path, target: Path) -> None:
    """Wrong tokens, shapes, nodes and sizes raise one clear line and leave the draft usable."""
    case = make_case(tmp_path, target)
    draft = case.draft
    with pytest.raises(ValueError, match="extend the draft"):
        draft.propose(1, DraftParams(), 10)
    draft.extend(case.tokens[:5], case.taps[:5])
    with pytest.raises(ValueError, match="token 320 is outside"):
        draft.extend([320], case.taps[:1])
    draft.extend(case.tokens[5:6], case.taps[5:6])
    with pytest.raises(ValueError, match="shape"):
        draft.extend(case.tokens[:2], case.taps[:3])
    with pytest.raises(ValueError, match="node 0 does not exist"):
        draft.level(np.array([1]), np.array([0]), 1)
    with pytest.raises(ValueError, match="top_k must be between 0 and 10"):
        draft.level(np.array([1]), np.array([-1]), 11)
    with pytest.raises(ValueError, match="a level of 99 nodes"):
        draft.level(np.zeros(99, np.int32), np.full(99, -1, np.int32), 1)
    with pytest.raises(ValueError, match="cannot rewind to 7"):
        draft.rewind(7)
    assert draft.n_pairs == 6
    assert len(draft.propose(1, DraftParams(), 10)) == 60


def test_a_closed_draft_says_so(tmp_path: Path, target: Path) -> None:
    """Closing twice is fine; using a closed draft is an error, not a crash."""
    draft = make_case(tmp_path, target).draft
    draft.close()
    draft.close()
    with pytest.raises(Exception, match="closed"):
        draft.logits(-1)


def test_llama_cpp_loads_the_head(tmp_path: Path) -> None:
    """A head that llama.cpp can express loads there as its own eagle3 architecture; another is refused by name."""
    import llama_cpp

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = False
    plain = tiny.make_head(tmp_path / "plain.gguf", norm_before_residual=True, norm_before_fc=True, rope_factors=True)
    other = tiny.make_head(tmp_path / "other.gguf", norm_output=True)
    model = llama_cpp.llama_model_load_from_file(str(plain).encode(), parameters)
    assert model
    llama_cpp.llama_model_free(model)
    assert not llama_cpp.llama_model_load_from_file(str(other).encode(), parameters)


def test_architecture_follows_what_llama_cpp_can_express() -> None:
    """Only heads that llama.cpp's eagle3 graph computes exactly carry its architecture name."""
    expressible = {
        "eagle3",
        "borrowed_output",
        "own_embedding",
        "full_vocabulary",
        "narrower_than_target",
        "odd_head_dim",
    }
    expressible |= {"norm_before_residual", "norm_before_fc", "rope_theta", "rope_linear", "rope_yarn", "rope_llama3"}
    for name, switches in VARIANTS.items():
        fields = {key: value for key, value in switches.items() if not key.startswith("own_")}
        config: HeadConfig = dataclasses.replace(tiny.HEAD, **fields)
        assert config.architecture == ("eagle3" if name in expressible else "eagle"), name
