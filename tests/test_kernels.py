"""Native kernels against a dequantised reference and against themselves: any number of rows, any path, any cells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from ggml_graph import F32, attend, multiply, quantise
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

from eagle_edge.errors import NativeError
from eagle_edge.kernels import choose_kernels, kernel_note, kernel_path

pytestmark = pytest.mark.native

TYPES = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.IQ4_NL, T.Q4_K, T.Q5_K, T.Q6_K, T.F16, T.BF16)
BF16 = 30
Float32 = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Native kernels on their best path, before and after every test."""
    if not choose_kernels("auto", ""):
        pytest.skip(f"no native kernels: {kernel_note()}")
    yield
    choose_kernels("auto", "")


def other_paths() -> list[str]:
    """The paths besides the best that this machine can run."""
    found = []
    best = choose_kernels("native", "")
    for name in ("avx512vnni", "avxvnni", "avx2", "neon_i8mm", "neon_dot"):
        try:
            if choose_kernels("native", name) != best:
                found.append(name)
        except NativeError:
            continue
    choose_kernels("native", "")
    return found


def matrix(kind: T, rows: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A random matrix of a type, rows of different size, as bytes [rows, row_bytes]."""
    random = np.random.default_rng(seed)
    size = np.exp(random.standard_normal((rows, 1)))
    return quantise(int(kind), (random.standard_normal((rows, width)) * size).astype(np.float32))


def inputs(n: int, width: int, seed: int = 1) -> Float32:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def product(kind: T, weight: npt.NDArray[np.uint8], rows: int, x: Float32, n_threads: int = 2) -> Float32:
    """The product of x [n, K] and the transpose of the weight [rows, K], by native kernels: [n, rows]."""
    out = multiply(int(kind), weight, (rows, x.shape[1]), x, native=True, n_threads=n_threads)
    assert out is not None
    return out


def relative_error(got: Float32 | None, expected: npt.NDArray[np.float64]) -> float:
    assert got is not None
    return float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_product_is_the_dequantised_product(kind: T) -> None:
    """A product is as close to exact arithmetic on the stored weights as rounding activations to 8 bits allows."""
    weight, x = matrix(kind, 48, 768), inputs(5, 768)
    exact = x.astype(np.float64) @ dequantize(weight, kind).reshape(48, 768).astype(np.float64).T
    ours = relative_error(multiply(int(kind), weight, (48, 768), x, native=True), exact)
    theirs = relative_error(multiply(int(kind), weight, (48, 768), x, native=False), exact)
    assert ours < (1e-6 if kind in (T.F16, T.BF16) else 0.008)
    assert ours <= theirs * 1.1 + 1e-6


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_do_not_depend_on_their_number(kind: T) -> None:
    """Every row of n = 1..64 equals the row computed alone, bit for bit, on any number of threads."""
    weight, x = matrix(kind, 32, 256), inputs(64, 256)
    alone = np.concatenate([product(kind, weight, 32, x[i : i + 1], 1) for i in range(64)])
    for n in range(1, 65):
        assert np.array_equal(alone[:n], product(kind, weight, 32, x[:n], 1 + n % 3)), n


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_paths_give_the_same_bits(kind: T) -> None:
    """Every instruction set computes what the best one computes."""
    weight, x = matrix(kind, 64, 512), inputs(13, 512)
    best = product(kind, weight, 64, x)
    for name in other_paths():
        choose_kernels("native", name)
        assert np.array_equal(best, product(kind, weight, 64, x)), name


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in (T.F16, T.BF16)], ids=lambda kind: kind.name)
def test_the_largest_weights_do_not_overflow(kind: T, fill: int) -> None:
    """All weights at an end of their range, all activations at either: on every path as exact arithmetic has it."""
    n_values, n_bytes = GGML_QUANT_SIZES[kind]
    block = np.full(n_bytes, fill, np.uint8)
    scales = block[-2:] if kind == T.Q6_K else block[: 4 if kind in (T.Q4_1, T.Q5_1, T.Q4_K, T.Q5_K) else 2]
    scales.view(np.float16)[:] = 1
    weight = np.tile(block, (16, 512 // n_values))
    x = np.concatenate([np.full((1, 512), 1), np.full((1, 512), -1), inputs(1, 512)]).astype(np.float32)
    exact = x[:2].astype(np.float64) @ dequantize(weight, kind).reshape(16, 512).astype(np.float64).T
    best = product(kind, weight, 16, x)
    assert np.allclose(best[:2], exact, rtol=1e-5, atol=1e-3)
    for name in other_paths():
        choose_kernels("native", name)
        assert np.array_equal(best, product(kind, weight, 16, x)), name


def test_extreme_activations() -> None:
    """Zero rows give zeros, and huge, tiny and one-sided rows stay close to exact arithmetic."""
    weight = matrix(T.Q4_1, 16, 64)
    x = np.concatenate([np.zeros((1, 64)), inputs(1, 64) * 1e20, inputs(1, 64) * 1e-20, np.ones((1, 64))]).astype(
        np.float32
    )
    out = product(T.Q4_1, weight, 16, x)
    exact = x.astype(np.float64) @ dequantize(weight, T.Q4_1).reshape(16, 64).astype(np.float64).T
    assert not out[0].any()
    for row in (1, 2, 3):
        assert relative_error(out[row], exact[row]) < 0.02


@pytest.mark.parametrize(("rows", "width"), [(17, 64), (8, 64), (40, 96)])
def test_odd_shapes_are_left_to_llama_cpp(rows: int, width: int) -> None:
    """A matrix whose rows do not fill groups of 16 is not taken."""
    weight, x = matrix(T.Q8_0, rows, width), inputs(3, width)
    assert multiply(int(T.Q8_0), weight, (rows, width), x, native=True) is None
    assert multiply(int(T.Q8_0), weight, (rows, width), x, native=False) is not None


# -- attention -------------------------------------------------------------------------------------------------------

HEADS, KV_HEADS, DIM = 6, 2, 64
KINDS = {1: np.float16, F32: np.float32}


def cells(n: int, kind: int = 1, seed: int = 3) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Random K and V [KV heads, n, DIM]."""
    random = np.random.default_rng(seed)
    k, v = random.standard_normal((2, KV_HEADS, n, DIM)).astype(KINDS[kind])
    return k, v


def queries(n: int, seed: int = 4) -> Float32:
    return np.random.default_rng(seed).standard_normal((HEADS, n, DIM)).astype(np.float32) * 2


def causal(n: int, n_cells: int) -> npt.NDArray[np.float16]:
    """Row i sees all but the last n - 1 - i cells."""
    hidden = np.arange(n_cells)[None, :] > np.arange(n_cells - n, n_cells)[:, None]
    return np.where(hidden, -np.inf, 0).astype(np.float16)


def exact_attention(
    q: Float32, k: npt.NDArray[np.generic], v: npt.NDArray[np.generic], mask: npt.NDArray[np.float16]
) -> Float32:
    k, v = (np.repeat(x.astype(np.float64), HEADS // KV_HEADS, axis=0) for x in (k, v))
    scores = q.astype(np.float64) @ k.transpose(0, 2, 1) / np.sqrt(DIM) + mask.astype(np.float64)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    out: npt.NDArray[np.float64] = (weights / weights.sum(axis=2, keepdims=True)) @ v
    rows: Float32 = out.transpose(1, 0, 2).astype(np.float32)
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_cells", [256, 768])
def test_attention_is_exact_attention(kind: int, n_cells: int) -> None:
    """Attention agrees with double precision to a few parts in a hundred thousand."""
    (k, v), q, mask = cells(n_cells, kind), queries(7), causal(7, n_cells)
    assert np.abs(attend(q, k, v, mask, kind) - exact_attention(q, k, v, mask)).max() < 3e-5


@pytest.mark.parametrize("n_cells", [256, 768])
def test_attention_rows_do_not_depend_on_their_number(n_cells: int) -> None:
    """A row of a batch equals the row alone, whatever the number of threads and rows."""
    (k, v), q, mask = cells(n_cells), queries(40), causal(40, n_cells)
    together = attend(q, k, v, mask, n_threads=2)
    for row in (0, 7, 39):
        for n_threads in (1, 2, 3):
            alone = attend(q[:, row : row + 1], k, v, mask[row : row + 1], n_threads=n_threads)
            assert np.array_equal(together[row : row + 1], alone)


def test_attention_does_not_depend_on_the_order_of_cells() -> None:
    """Moving cells about, with other cells in between, changes no bit: a branch may lie anywhere in the cache."""
    (k, v), q = cells(256), queries(3)
    before = attend(q, k, v, np.zeros((3, 256), np.float16))
    places = np.sort(np.random.default_rng(5).permutation(512)[:256])
    order = np.random.default_rng(6).permutation(256)
    wide_k, wide_v = cells(512, seed=9)
    wide_k[:, places], wide_v[:, places] = k[:, order], v[:, order]
    mask = np.full((3, 512), -np.inf, np.float16)
    mask[:, places] = 0
    assert np.array_equal(before, attend(q, wide_k, wide_v, mask))


def test_attention_paths_give_the_same_bits() -> None:
    """Every instruction set computes what the best one computes."""
    (k, v), q, mask = cells(256), queries(5), causal(5, 256)
    best = attend(q, k, v, mask)
    for name in other_paths():
        choose_kernels("native", name)
        assert np.array_equal(best, attend(q, k, v, mask)), name


def test_a_row_that_sees_nothing_is_zero() -> None:
    """A padded row whose cells are all masked gives zeros, not NaN."""
    (k, v), q = cells(256), queries(2)
    mask = np.zeros((2, 256), np.float16)
    mask[1] = -np.inf
    assert not attend(q, k, v, mask)[1].any()


# -- choosing --------------------------------------------------------------------------------------------------------


def test_unknown_names_are_refused() -> None:
    """A wrong mode or path is one clear error."""
    with pytest.raises(ValueError, match="kernels must be one of"):
        choose_kernels("fast")  # type: ignore[arg-type]
    with pytest.raises(NativeError, match="no such kernel path"):
        choose_kernels("native", "sse2")


def test_llama_cpp_can_be_chosen() -> None:
    """With llama.cpp's kernels chosen the note says why, and weights that were laid before stay usable."""
    assert choose_kernels("llama.cpp") == ""
    assert kernel_path() == ""
    assert "asked for" in kernel_note()
    weight, x = matrix(T.Q8_0, 32, 64), inputs(2, 64)
    assert multiply(int(T.Q8_0), weight, (32, 64), x, native=True) is not None  # loaded weights stay usable
