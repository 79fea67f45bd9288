"""Any configuration and any table of tensors: a head comes out, or one line says why not."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import checkpoints  # noqa: E402
from checkpoints import Layout, layouts  # noqa: E402
from eagle_edge_convert import convert_head  # noqa: E402

from eagle_edge.errors import FileFormatError, PairError  # noqa: E402
from eagle_edge.gguf_header import read_header  # noqa: E402
from eagle_edge.pair import pair_differences  # noqa: E402

LAYOUTS = layouts()
KEYS = sorted({key for layout in LAYOUTS.values() for key in (*layout.config, *layout.config.get("eagle_config", {}))})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 400),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.sampled_from(["yarn", "llama3", "linear", "silu", "sliding_attention"]),
    st.lists(st.integers(-3, 9) | st.floats(allow_nan=False), max_size=4),
    st.dictionaries(
        st.sampled_from([*KEYS, "rope_type", "factor", "rope_theta"]), st.integers(-2, 9) | st.text(max_size=3)
    ),
)
NAMES = sorted(
    {name for layout in LAYOUTS.values() for name in layout.tensors} | {"mask_hidden", "x", "layers.9.mlp.q"}
)
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("target") / "target.gguf", n_layer=checkpoints.N_LAYER)


def outcome(layout: Layout, target: Path) -> str:
    """The word right with a head that fits its target, or the line that refuses it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = layout.write(Path(scratch) / "head"), Path(scratch) / "out.gguf"
        try:
            convert_head(folder, target, out, "f32", check=False)
        except (FileFormatError, PairError) as error:
            message = str(error)
        else:
            assert pair_differences(read_header(out), read_header(target)) == []
            return "right"
        assert "\n" not in message
        assert not list(out.parent.glob("out*"))
        return message


@SETTINGS
@example(name="angelslim", changes={"rms_norm_eps": 5e-324})  # 0 as a 32-bit float
@example(name="angelslim", changes={"rms_norm_eps": 3.4028235677973366e38})  # infinite
@given(name=st.sampled_from(sorted(LAYOUTS)), changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_configuration(name: str, changes: dict[str, Any], target: Path) -> None:
    """A key of any value is understood, refused, or changes nothing."""
    layout = LAYOUTS[name]
    assert outcome(dataclasses.replace(layout, config={**layout.config, **changes}), target)


@SETTINGS
@given(
    name=st.sampled_from(sorted(LAYOUTS)),
    dropped=st.sets(st.sampled_from(NAMES), max_size=2),
    added=st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.lists(st.sampled_from([0, 1, 16, 64, 96, 128, 192, 320]), max_size=3), st.booleans()),
        max_size=2,
    ),
)
def test_any_table_of_tensors(
    name: str, dropped: set[str], added: dict[str, tuple[list[int], bool]], target: Path
) -> None:
    """Tensors that are missing, extra, of another shape or of another type are named, or the head is right."""
    layout = LAYOUTS[name]
    tensors = {key: tensor for key, tensor in layout.tensors.items() if key not in dropped}
    for key, (shape, whole) in added.items():
        tensors[key] = torch.ones(shape, dtype=torch.int64 if whole else torch.float32)
    assert outcome(dataclasses.replace(layout, tensors=tensors), target)


def test_the_good_ones_are_right(target: Path) -> None:
    """Unchanged, every layout comes out right, so the other tests can tell right from refused."""
    assert {outcome(layout, target) for layout in LAYOUTS.values()} == {"right"}
