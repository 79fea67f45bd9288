"""Numbers into ggml's types: the same bytes as gguf-py's own encoder, and close to what went in."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from eagle_edge_convert.encode import QUANTIZATIONS, Kind, encode_rows, matrix_type, n_encoded_bytes

from eagle_edge.errors import FileFormatError

# Relative error of normally distributed numbers, a little over what each type gives.
ERRORS = {"F32": 1e-9, "F16": 3e-4, "BF16": 3e-3, "Q8_0": 0.01, "Q6_K": 0.03, "Q5_K": 0.05, "Q5_1": 0.06, "Q5_0": 0.06}
ERRORS |= {"Q4_K": 0.1, "Q4_1": 0.11, "Q4_0": 0.12, "IQ4_NL": 0.1, "IQ4_XS": 0.1, "Q3_K": 0.2}


def numbers(n_rows: int = 16, width: int = 512) -> npt.NDArray[np.float32]:
    return np.random.default_rng(4).standard_normal((n_rows, width)).astype(np.float32)


@pytest.mark.parametrize("name", sorted({q.kind.name for q in QUANTIZATIONS.values()}))
def test_a_type_keeps_the_numbers_within_its_error(name: str) -> None:
    """Decoding gives the numbers back within the error of the type, in the size that the file announces."""
    values, kind = numbers(), gguf.GGMLQuantizationType[name]
    data = bytes(encode_rows(values, kind, "x"))
    assert n_encoded_bytes(values.shape, kind) == len(data)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.frombuffer(data, np.uint8).reshape(16, 512 // block * size)
    back = gguf.quants.dequantize(rows.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8)), kind)
    assert np.sqrt(np.mean((back - values) ** 2)) <= ERRORS[name]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_the_bytes_are_gguf_pys(name: str) -> None:
    """Where gguf-py can encode a type too, both write the same bytes."""
    expected = gguf.quants.quantize(numbers(), gguf.GGMLQuantizationType[name]).tobytes()
    assert expected == bytes(encode_rows(numbers(), gguf.GGMLQuantizationType[name], "x"))


def test_half_precision_that_stays_is_not_touched() -> None:
    """float16 and bfloat16 bits pass unchanged, and are looked at for NaN all the same."""
    half, brain = numbers().astype(np.float16), (numbers().view(np.uint32) >> 16).astype(np.uint16)
    assert half.tobytes() == bytes(encode_rows(half, Kind.F16, "x"))
    assert brain.tobytes() == bytes(encode_rows(brain, Kind.BF16, "x"))
    half[3, 5], brain[1, 1] = np.inf, 0x7FC0
    for bad, kind in ((half, Kind.F16), (brain, Kind.BF16)):
        with pytest.raises(FileFormatError, match="the tensor a holds NaN or infinite values"):
            encode_rows(bad, kind, "the tensor a")


def test_what_half_precision_cannot_hold_is_said() -> None:
    """A number beyond 65504 is refused with the types that hold it."""
    with pytest.raises(FileFormatError, match="holds 70000, more than half precision can; use --quantize bf16 or f32"):
        encode_rows(np.full((1, 32), 7e4, np.float32), Kind.Q8_0, "x")
    assert encode_rows(np.full((1, 32), 7e4, np.float32), Kind.BF16, "x")


def test_rows_that_are_not_whole_blocks_fall_back() -> None:
    """As in llama.cpp: to a type of blocks of 32, and from there to half precision."""
    q4 = QUANTIZATIONS["q4_k_m"]
    assert matrix_type("fc.weight", 512, q4) == (Kind.Q4_K, "")
    assert matrix_type("fc.weight", 576, q4)[0] is Kind.Q5_0
    assert matrix_type("fc.weight", 50, q4)[0] is Kind.F16
    assert "not whole blocks" in matrix_type("fc.weight", 576, q4)[1]


@pytest.mark.parametrize("name", sorted(QUANTIZATIONS))
def test_what_drafting_loses_most_by_is_kept_finer(name: str) -> None:
    """The output matrix is never coarser than Q6_K, nor are two more matrices in mixtures; others are as asked."""
    quantization = QUANTIZATIONS[name]
    coarse = name not in ("f32", "f16", "bf16", "q8_0", "q6_k")
    output, why = matrix_type("output.weight", 512, quantization)
    assert output is (Kind.Q6_K if coarse else quantization.kind)
    assert bool(why) == coarse
    assert matrix_type("blk.0.attn_output.weight", 512, quantization) == (quantization.kind, "")
    for part in ("blk.0.ffn_down.weight", "blk.0.attn_v.weight"):
        assert matrix_type(part, 512, quantization)[0] is (quantization.fine or quantization.kind)
    if coarse:  # 576 = 18 blocks of 32, as in SmolLM2
        assert matrix_type("output.weight", 576, quantization)[0] is Kind.Q5_1
    assert {QUANTIZATIONS[q].fine for q in ("q4_0", "q4_1", "iq4_nl", "q4_k_m")} == {Kind.Q6_K}
