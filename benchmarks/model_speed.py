"""Prefill and decode speed of the demo model and of a random model with the geometry of the 0.8B family member.

Each point runs `ninfer bench` in a process of its own. The floor of a decode step is the time to read every weight
once: the bytes of the expanded fp32 weights over the read bandwidth that this script measures in the same run.

    python benchmarks/model_speed.py [--threads N] [--recipes q8,bf16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from convert_speed import write_checkpoint

from ninfer.cli.models import demo_model
from ninfer.convert import convert

LAYERS = 24
DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
FRONTEND = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
POINTS = (("--pp", "128"), ("--pp", "512"), ("--tg", "16"))
BATCHES = (1, 4, 8)


def read_bandwidth(threads: int, size: int = 1 << 30) -> float:
    """Bytes per second of summing a buffer far larger than the caches, best of five."""
    torch.set_num_threads(threads)
    data = torch.ones(size // 4)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - started)
    return size / min(times)


def bench(model: Path, threads: int, *arguments: str) -> list[dict[str, Any]]:
    """The points of one `ninfer bench` run."""
    command = [sys.executable, "-m", "ninfer", "bench", "--model", str(model), "--threads", str(threads)]
    done = subprocess.run([*command, *arguments, "--json", "-"], check=True, stdout=subprocess.PIPE, text=True)
    points: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return points


def measure(model: Path, threads: int) -> list[dict[str, Any]]:
    rows = []
    for flag, tokens in POINTS:
        batches = BATCHES if flag == "--tg" else (1,)
        for batch in batches:
            extra = ("--concurrency", str(batch)) if flag == "--tg" else ()
            rows += bench(model, threads, flag, tokens, *extra)
    return rows


def random_models(folder: Path, recipes: list[str]) -> dict[str, Path]:
    """Artifacts of one random checkpoint by name."""
    source = folder / "source"
    source.mkdir()
    write_checkpoint(source, LAYERS)
    for name in FRONTEND:
        shutil.copy(DEMO / name, source / name)
    models = {}
    for recipe in recipes:
        models[f"0.8B {recipe}"] = folder / f"{recipe}.ninfer"
        convert(source, models[f"0.8B {recipe}"], recipe=recipe)
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipes", default="q8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bandwidth = read_bandwidth(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        models = {"demo q8": demo_model(), **random_models(Path(folder), options.recipes.split(","))}
        results = {name: measure(model, options.threads) for name, model in models.items()}
    print(f"{options.threads} threads, read bandwidth {bandwidth / 1e9:.1f} GB/s")
    for name, rows in results.items():
        for row in rows:
            print(f"{name:<12} {row['point']:<12} {row['tokens_per_second']['median']:>10.1f} tokens/s")
    if options.json:
        options.json.write_text(json.dumps({"read_bytes_per_s": bandwidth, "results": results}, indent=2))


if __name__ == "__main__":
    main()
