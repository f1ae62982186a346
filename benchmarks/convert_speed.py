"""Conversion speed and peak memory on a random bf16 checkpoint of more than 2 GB.

The checkpoint has the geometry of the 0.8B model (hidden 1024, 8/2 heads of 256, GDN 16/16 heads of 128, FFN 3584,
tied vocabulary of 248320) with more layers. Each recipe runs in a process of its own, so that peak memory is its own.

    python benchmarks/convert_speed.py [--layers 40] [--recipes bf16,q8,groupwise] [--workers N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ninfer.artifact.floats import fp32_to_bf16
from ninfer.convert import convert
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import SourceRoot, inventory

_NOISE_ELEMENTS = 1 << 22


def text_config(layers: int) -> dict[str, Any]:
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "vocab_size": 248320,
        "num_hidden_layers": layers,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "layer_types": [kinds[index % 4] for index in range(layers)],
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 16,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 3584,
    }


def write_checkpoint(path: Path, layers: int) -> int:
    """Write config, tensors and the smallest possible frontend files; returns the bytes of tensor data."""
    config = text_config(layers)
    (path / "config.json").write_text(json.dumps(config))
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", {}), ("generation_config.json", {})):
        (path / name).write_text(json.dumps(value))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    model = ModelConfig.from_artifact({"text": config}, "benchmark")
    prefix = {SourceRoot.TOP: "", SourceRoot.TEXT: "model."}
    shapes = {
        prefix[spec.source.root] + spec.source.tensor: spec.source.shape for spec in inventory(model) if spec.source
    }
    return write_tensors(path / "model.safetensors", shapes)


def write_tensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """A safetensors file of bf16 noise; only small blocks of it are ever in memory."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for block in noise(end // 2):
            file.write(block.data)
    return end


def noise(elements: int) -> Iterator[np.ndarray[Any, np.dtype[np.uint16]]]:
    random = np.random.default_rng(0)
    block = fp32_to_bf16(random.standard_normal(_NOISE_ELEMENTS, np.float32) / np.float32(32))
    while elements:
        yield np.roll(block, int(random.integers(_NOISE_ELEMENTS)))[:elements]
        elements -= min(elements, _NOISE_ELEMENTS)


def run_one(source: Path, recipe: str, workers: int) -> None:
    """One conversion in this process; prints one JSON object."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        report = convert(source, Path(folder) / "m.ninfer", recipe=recipe, workers=workers)
    result = {
        "recipe": recipe,
        "workers": workers,
        "seconds": round(report.seconds, 2),
        "source_bytes": report.source_bytes,
        "artifact_bytes": report.artifact_bytes,
        "source_mb_per_s": round(report.source_bytes / report.seconds / 1e6, 1),
        "peak_rss_bytes": report.peak_bytes,
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--recipes", default="bf16,q8,groupwise")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="where the checkpoint and the artifacts go for the time being")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--one", nargs=2, metavar=("DIR", "RECIPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(Path(options.one[0]), options.one[1], options.workers)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "source"
        source.mkdir()
        size = write_checkpoint(source, options.layers)
        print(f"source: {size / 1e9:.2f} GB, {options.workers} workers", file=sys.stderr)
        results = [measure(source, recipe, options.workers) for recipe in options.recipes.split(",")]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    print(f"{'recipe':<12}{'seconds':>9}{'MB/s of source':>16}{'peak RSS MiB':>14}{'artifact GB':>13}")
    for row in results:
        peak, written = row["peak_rss_bytes"] / 2**20, row["artifact_bytes"] / 1e9
        print(f"{row['recipe']:<12}{row['seconds']:>9.1f}{row['source_mb_per_s']:>16.1f}{peak:>14.0f}{written:>13.2f}")


def measure(source: Path, recipe: str, workers: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(source), recipe, "--workers", str(workers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
