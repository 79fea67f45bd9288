"""The head's forward, training-time test and loss against slow and obvious versions of themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from tiny import HEAD

from eagle_edge.train.loss import Draws, LossRows, gumbel_pool, ranks, soft_cross_entropy, unrolled_loss
from eagle_edge.train.model import Head
from eagle_edge.train.recipes import RECIPES
from eagle_edge.train.unroll import Batch, unroll


def recipe_switches(name: str) -> dict[str, Any]:
    """What sets the head of a recipe apart from the tiny one."""
    head = RECIPES[name].head
    flags = ("kind", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    sizes = {"taps": head.taps, "n_draft_vocab": HEAD.n_vocab} if head.kind == "eagle1" else {}
    return {flag: getattr(head, flag) for flag in flags} | sizes


SWITCHES: list[dict[str, Any]] = [
    *map(recipe_switches, RECIPES),
    {"norm_before_residual": True, "norm_before_fc": True},
    {"n_embd": 32, "n_head": 2, "n_head_kv": 1, "norm_before_residual": True},
    {"taps": (3,)},
]


def make_head(**switches: Any) -> Head:
    torch.manual_seed(3)
    config = dataclasses.replace(HEAD, **switches)
    shape = (config.n_vocab, config.n_embd)
    return Head(config, torch.randn(shape), torch.randn(shape)).double()


def make_batch(head: Head, n_sequences: int = 2, length: int = 12) -> Batch:
    torch.manual_seed(4)
    width = len(head.config.taps) * head.config.n_embd_target
    tokens = torch.randint(0, head.config.n_vocab, (n_sequences, length))
    rows = torch.stack([torch.arange(3, 9), torch.arange(1, 7)])[:n_sequences]
    return Batch(tokens, torch.randn(n_sequences, length, width, dtype=head.fc.weight.dtype), rows)


def brute_force(head: Head, batch: Batch, n_steps: int) -> list[torch.Tensor]:
    """Every step over every row, with one explicit mask over the (steps * T) keys."""
    attention = head.midlayer.self_attn
    T = batch.tokens.shape[1] - 1
    feature = head.feature(batch.taps[:, :-1])
    keys, values, outputs = [], [], []
    for step in range(n_steps):
        positions = torch.arange(T)[None]
        tokens = batch.tokens.gather(1, (positions + 1 + step).clamp(max=T).expand(len(batch.tokens), -1))
        x, residual = head.pair(tokens, feature)
        key, value = attention.key_value(x, head.angles(positions + step))
        keys.append(key)
        values.append(value)
        mask = torch.cat([torch.ones(T, T).tril(), *[torch.eye(T)] * step], dim=1).bool()
        query = attention.query(x, head.angles(positions + step))
        groups = query.shape[1] // key.shape[1]
        full_key = torch.cat(keys, 2).repeat_interleave(groups, 1)
        full_value = torch.cat(values, 2).repeat_interleave(groups, 1)
        attended = torch.nn.functional.scaled_dot_product_attention(query, full_key, full_value, attn_mask=mask)
        feature, normed = head.finish(residual, attended.transpose(1, 2).flatten(2))
        outputs.append(normed.gather(1, batch.rows[..., None].expand(-1, -1, normed.shape[-1])))
    return outputs


@pytest.mark.parametrize("switches", SWITCHES)
def test_the_diagonal_trick_equals_one_explicit_mask(switches: dict[str, Any]) -> None:
    """Each step's rows see the causal block and their own earlier steps, nothing else."""
    head = make_head(**switches)
    batch = make_batch(head)
    for (_, found), expected in zip(unroll(head, batch, 4), brute_force(head, batch, 4), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_rows_carried_on_are_what_they_would_be_among_all() -> None:
    """Thinning the rows changes which are computed, not their values."""
    head = make_head()
    batch = make_batch(head)
    everything = unroll(head, batch, 4)
    thinned = unroll(head, batch, 4, keep=0.5, generator=torch.Generator().manual_seed(0))
    assert [len(columns) for columns, _ in thinned] == [6, 3, 2, 1]
    for (columns, found), (_, expected) in zip(thinned, everything, strict=True):
        torch.testing.assert_close(found, expected[:, columns])


def make_rows(n: int, n_draft: int) -> LossRows:
    torch.manual_seed(5)
    ids = torch.stack([torch.randperm(n_draft)[:6] for _ in range(n)])
    probabilities = torch.rand(n, 6, dtype=torch.float64)
    probabilities /= probabilities.sum(1, keepdim=True)
    probabilities[:, -1] = 0
    weight = torch.ones(n, dtype=torch.float64)
    weight[1] = 0
    best = ids[:, 0].clone()
    best[2] = -1
    return LossRows(ids, probabilities, weight, best)


def make_draws(hard_share: float) -> Draws:
    return Draws(gumbel_pool(torch.empty(40, 8), 3), hard_share, torch.Generator().manual_seed(4))


def test_the_target_draws_by_its_distribution() -> None:
    """By the noise that the head's logits get, a token is the label as often as the target gives it."""
    one = make_rows(3, 40).part(slice(0, 1))
    parts = one.ids, one.probabilities, one.weight, one.best
    rows = LossRows(*(part.expand(20_000, *part.shape[1:]) for part in parts))
    logits, drawn = make_draws(0.0)(torch.zeros(20_000, 40), rows)
    shares = torch.bincount(drawn.ids[:, 0], minlength=40) / 20_000
    torch.testing.assert_close(
        shares[one.ids[0]].double(), one.probabilities[0] / one.probabilities.sum(), atol=0.012, rtol=0
    )
    # The noise is the same: a head that says what the target says proposes every draw.
    exact = torch.full((40,), -1e9).scatter(0, one.ids[0], one.probabilities[0].log().float().clamp(min=-1e9))
    assert torch.equal((logits + exact).argmax(1), drawn.ids[:, 0])


def test_rows_without_noise_have_the_targets_choice() -> None:
    """A hard share of 1 leaves logits as they are, and the likeliest token is the label; a half does so for half."""
    rows, logits = make_rows(1000, 40), torch.randn(1000, 40)
    best = rows.ids.gather(1, rows.probabilities.argmax(1, keepdim=True))
    same, hard = make_draws(1.0)(logits, rows)
    assert torch.equal(same, logits)
    assert torch.equal(hard.ids, best)
    mixed, _ = make_draws(0.5)(logits, rows)
    assert 430 < int((mixed == logits).all(1).sum()) < 570


def test_the_chunked_loss_equals_torch_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and both gradients equal those of the dense formula, whatever the chunk size divides."""
    sizes = unrolled_loss.__globals__
    monkeypatch.setitem(sizes, "CHUNK_LOGITS", 56 * 40)  # 300 rows in blocks of 128, those in chunks
    monkeypatch.setitem(sizes, "HELD_GRADIENTS", 128 * 40)
    torch.manual_seed(6)
    hidden = torch.randn(300, 8, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    rows = make_rows(300, 40)
    dense = torch.zeros(300, 40, dtype=torch.float64).scatter_add(1, rows.ids, rows.probabilities)
    expected = (-(dense * (hidden @ matrix.T).log_softmax(1)).sum(1) * rows.weight).sum()
    wanted = torch.autograd.grad(expected, (hidden, matrix))
    found = soft_cross_entropy(hidden, matrix, rows)
    torch.testing.assert_close(found, expected)
    for gradient, reference in zip(torch.autograd.grad(found, (hidden, matrix)), wanted, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize(("name", "drawn"), [*((name, False) for name in RECIPES), ("eagle3", True)])
def test_gradients_pass_a_finite_difference_check(name: str, drawn: bool) -> None:
    """The gradient of a recipe's whole unrolled loss, through all steps and the custom loss, is the slope of it."""
    head, how = make_head(**recipe_switches(name)), RECIPES[name].loop
    batch = make_batch(head)
    rows = make_rows(12, head.config.n_draft_vocab)
    if how.state_loss > 0:
        rows = dataclasses.replace(rows, states=torch.randn(12, head.config.n_embd, dtype=torch.float64))

    def loss() -> torch.Tensor:
        steps = [(hidden.flatten(0, 1), rows) for _, hidden in unroll(head, batch, 3)]
        draws = make_draws(how.hard_share) if drawn else None
        return unrolled_loss(steps, head.output, 0.8, how.token_loss, how.state_loss, draws)

    torch.autograd.backward(loss())
    for name, parameter in head.named_parameters():
        direction = torch.randn_like(parameter)
        assert parameter.grad is not None
        slope = (parameter.grad * direction).sum()
        step = 1e-5
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            above = loss()
            parameter.sub_(direction, alpha=2 * step)
            below = loss()
            parameter.add_(direction, alpha=step)
        torch.testing.assert_close((above - below) / (2 * step), slope, rtol=1e-5, atol=1e-6, msg=name)


def test_the_loss_of_steps_is_the_mean_of_their_means() -> None:
    """Steps of different sizes and weights give what they give one by one."""
    torch.manual_seed(6)
    matrix = torch.randn(40, 8, dtype=torch.float64)
    steps = [(torch.randn(n, 8, dtype=torch.float64), make_rows(n, 40)) for n in (30, 20, 7)]
    means = [soft_cross_entropy(hidden, matrix, rows) / rows.weight.sum() for hidden, rows in steps]
    expected = (means[0] + 0.5 * means[1] + 0.25 * means[2]) / 1.75
    torch.testing.assert_close(unrolled_loss(steps, matrix, 0.5, 1.0, 0.0), expected)


def test_a_frozen_matrix_costs_no_gradient() -> None:
    """The rows' gradient is the same; the matrix gets none."""
    torch.manual_seed(6)
    hidden, rows = torch.randn(30, 8, dtype=torch.float64, requires_grad=True), make_rows(30, 40)
    free = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(soft_cross_entropy(hidden, free, rows), (hidden,))
    frozen = free.detach()
    (found,) = torch.autograd.grad(soft_cross_entropy(hidden, frozen, rows), (hidden,))
    assert torch.equal(found, wanted)


def test_ranks_count_the_candidates_before_the_best() -> None:
    """Rank 0 is the argmax; a token outside the vocabulary ranks behind all."""
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert ranks(logits, torch.eye(3), torch.tensor([0, 1, -1])).tolist() == [0, 2, 3]
