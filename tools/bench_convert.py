"""Converts a random head of an 8-billion-parameter model's shape: peak memory, and time against a plain copy.

    python tools/bench_convert.py [--quantize f16 q8_0 q4_k_m] [--rounds 3] [--check]

The head (H 4096, MLP 14336, 8 key heads, draft vocabulary 32000: 425 million parameters in half precision) and the
copy are made in a temporary folder, and copies and conversions are timed in turn, to the disk (fsync). --check runs
each result against its checkpoint as well, and counts the memory and the time of that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from eagle_edge_convert import convert_head
from eagle_edge_convert.save import SavedTensor, save_safetensors

H, N_FF, N_HEAD, N_KV, HEAD_DIM, R, V, N_LAYER = 4096, 14336, 32, 8, 128, 32000, 128256, 32


def make_target(path: Path) -> None:
    """A target that is a header and a vocabulary, which is all that converting a head reads."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Random 8B")
    writer.add_embedding_length(H)
    writer.add_block_count(N_LAYER)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(V)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_head(folder: Path) -> int:
    """The checkpoint in SpecForge's layout; its number of parameters."""
    q, kv = N_HEAD * HEAD_DIM, N_KV * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, 3 * H),
        "midlayer.self_attn.q_proj.weight": (q, 2 * H),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * H),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, q),
        "midlayer.mlp.gate_proj.weight": (N_FF, H),
        "midlayer.mlp.up_proj.weight": (N_FF, H),
        "midlayer.mlp.down_proj.weight": (H, N_FF),
        "lm_head.weight": (R, H),
        **{f"midlayer.{x}.weight": (H,) for x in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        "norm.weight": (H,),
    }
    rng = np.random.default_rng(0)
    sample = (rng.standard_normal(1 << 20) / 64).astype(np.float16)

    def tensor(shape: tuple[int, ...]) -> SavedTensor:
        return SavedTensor(shape, "F16", lambda: np.resize(sample, shape))

    tensors = {name: tensor(shape) for name, shape in shapes.items()}
    ids = np.sort(rng.choice(V, R, replace=False)).astype(np.int64)
    tensors["d2t"] = SavedTensor((R,), "I64", lambda: ids - np.arange(R))
    folder.mkdir()
    save_safetensors(folder / "model.safetensors", tensors)
    config = {"num_attention_heads": N_HEAD, "num_key_value_heads": N_KV, "rms_norm_eps": 1e-5, "vocab_size": V}
    (folder / "config.json").write_text(json.dumps(config))
    return sum(int(np.prod(shape)) for shape in shapes.values())


def copy(source: Path, destination: Path) -> float:
    """Seconds to copy a file to the disk."""
    start = time.perf_counter()
    shutil.copyfile(source, destination)
    with destination.open("rb+") as file:
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    destination.unlink()
    return seconds


def convert(folder: Path, quantize: str, check: bool) -> tuple[float, int]:
    """Seconds and peak bytes of one conversion in a process of its own, or of its check where that takes more."""
    command = [sys.executable, __file__, "--convert", str(folder), quantize, *(["--check"] if check else [])]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer["seconds"], answer["peak_bytes"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantize", nargs="+", default=["f16", "q8_0", "q4_k_m"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="run each result against its checkpoint")
    parser.add_argument("--convert", nargs=2, metavar=("FOLDER", "TYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        folder, quantize = Path(arguments.convert[0]), arguments.convert[1]
        start = time.perf_counter()
        convert_head(folder / "head", folder / "target.gguf", folder / "out.gguf", quantize, check=arguments.check)
        seconds = time.perf_counter() - start
        (folder / "out.gguf").unlink()
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        n = make_head(folder / "head")
        make_target(folder / "target.gguf")
        data = folder / "head" / "model.safetensors"
        print(f"{n / 1e6:.0f} million parameters, {data.stat().st_size / 1e6:.0f} MB")
        for quantize in arguments.quantize:
            copies, runs = [], []
            for _ in range(arguments.rounds):
                copies.append(copy(data, folder / "copy"))
                runs.append(convert(folder, quantize, arguments.check))
            plain, seconds = statistics.median(copies), statistics.median(run[0] for run in runs)
            peak = max(run[1] for run in runs)
            print(
                f"{quantize:7} {seconds:6.2f} s, {seconds / plain:5.1f} x a plain copy ({plain:.2f} s), "
                f"peak {peak / 2**20:.0f} MiB"
            )


if __name__ == "__main__":
    main()
