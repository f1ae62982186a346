"""What 8-bit activations cost in perplexity: the demo model with each `-cpu` recipe against its twin without.

The text is what the demo was evaluated on: the chapters of the King James Bible that its training held out, here in
windows of 1024 tokens. They come from the `bible` program (Debian package bible-kjv-text) or a file with its output;
without either, the repository's README serves, which the demo reads badly.

    python benchmarks/a8_perplexity.py [--text FILE] [--chapters N] [--recipes q8,q4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ninfer import Scorer
from ninfer.convert import convert

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "demo"
CONTEXT = 1024
TWIN = "-cpu"


@dataclass(frozen=True, slots=True)
class Scored:
    """One artifact's log-probabilities of all scored tokens, in order, in nats."""

    recipe: str
    artifact_bytes: int
    logprobs: tuple[float, ...]

    @property
    def perplexity(self) -> float:
        return math.exp(-statistics.fmean(self.logprobs))


@dataclass(frozen=True, slots=True)
class Cost:
    """How much greater the perplexity is with 8-bit activations, as a fraction, and its standard error.

    The error is that of the mean difference per token, so it is far smaller than either perplexity's own.
    """

    recipe: str
    tokens: int
    perplexity_a16: float
    perplexity_a8: float
    cost: float
    error: float


def read_texts(path: Path | None, chapters: int | None) -> tuple[str, list[tuple[str, str]]]:
    """What is scored, in words, and (name, text) of every piece."""
    if path is None and shutil.which("bible") is None:
        return "README.md", [("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))]
    sys.path.insert(0, str(DEMO))
    from tokenizer import read_chapters

    _, held_out = read_chapters(path)
    chosen = held_out[:chapters]
    return f"{len(chosen)} held-out chapters", [(f"chapter {i}", text) for i, text in enumerate(chosen)]


def score(recipe: str, texts: list[tuple[str, str]], folder: Path) -> Scored:
    """Convert the demo with this recipe and score every text."""
    path = folder / f"{recipe}.ninfer"
    report = convert(DEMO, path, recipe=recipe)
    logprobs: list[float] = []
    with Scorer(path, context=CONTEXT, stride=CONTEXT // 2) as scorer:
        scorer.score(texts, on_token=lambda token: logprobs.append(token.logprob))
    return Scored(recipe, report.artifact_bytes, tuple(logprobs))


def compare(a16: Scored, a8: Scored) -> Cost:
    losses = [before - after for before, after in zip(a16.logprobs, a8.logprobs, strict=True)]
    cost = math.expm1(statistics.fmean(losses))
    error = statistics.stdev(losses) / math.sqrt(len(losses))
    return Cost(a16.recipe, len(losses), a16.perplexity, a8.perplexity, cost, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, help="output of `bible -f Gen1:1-Rev22:21`")
    parser.add_argument("--chapters", type=int, help="only the first N of them")
    parser.add_argument("--recipes", default="q8,q4", help="recipes that have a -cpu twin")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    what, texts = read_texts(options.text, options.chapters)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = score("bf16", texts, folder)
        costs = []
        for recipe in options.recipes.split(","):
            costs.append(compare(score(recipe, texts, folder), score(recipe + TWIN, texts, folder)))
    print(f"{what}, {len(reference.logprobs):,} tokens; bf16 perplexity {reference.perplexity:.4f}")
    print(f"{'recipe':<10}{'A16':>10}{'A8':>10}{'cost':>10}{'+/-':>9}")
    for row in costs:
        figures = f"{row.perplexity_a16:>10.4f}{row.perplexity_a8:>10.4f}"
        print(f"{row.recipe:<10}{figures}{row.cost:>+10.3%}{row.error:>9.3%}")
    if options.json:
        rows = [asdict(row) for row in costs]
        options.json.write_text(json.dumps({"text": what, "bf16": reference.perplexity, "costs": rows}, indent=2))


if __name__ == "__main__":
    main()
