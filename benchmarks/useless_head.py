"""Our engine with a head that is sure of itself and always wrong: what drafting costs where there is nothing to gain.

    python benchmarks/useless_head.py QUESTIONS [options of eagle-edge bench]

It is the given head with the tokens of its vocabulary exchanged at random, so it takes as long as a good one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

from eagle_edge.errors import EagleEdgeError, FileFormatError
from eagle_edge.gguf_header import read_header
from eagle_edge.models import default_head, default_target


def main() -> None:
    """Parse, write the head, run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="a folder of question sets")
    parser.add_argument("--target", type=Path, default=default_target())
    parser.add_argument("--head", type=Path, default=default_head(), help="one with a vocabulary of its own")
    ours, bench_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / "useless.gguf"
        exchange_tokens(ours.head, head)
        command = [sys.executable, "-m", "eagle_edge", "bench", ours.questions, "--target", ours.target, "--head", head]
        sys.exit(subprocess.run([*map(str, command), *bench_options], check=False).returncode)


def exchange_tokens(source: Path, output: Path) -> None:
    """Copy a head, the target ids of its draft vocabulary [R] in another order.

    Raises:
        FileFormatError: no such file, no GGUF file, or a head without a draft vocabulary.
    """
    if "d2t" not in read_header(str(source)).tensors:
        raise FileFormatError(
            f"{source}: it has no vocabulary of its own (d2t) to exchange tokens of; name another --head"
        )
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(output), str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        if tensor.name == "d2t":  # as llama.cpp keeps it: target ids
            writer.add_tensor(tensor.name, np.random.default_rng(0).permutation(tensor.data))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    try:
        main()
    except EagleEdgeError as error:
        sys.exit(f"useless_head.py: {error}")
