"""`ninfer score`: how well a model predicts texts."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ninfer.cli import factories
from ninfer.cli.engine_flags import ComputeFlags
from ninfer.cli.failures import CommandError, UsageMistake
from ninfer.cli.flags import ModelOptionFlag
from ninfer.cli.models import choose_model
from ninfer.cli.outputs import check_writable, print_json, table_console, to_json, whole_file, write_text
from ninfer.cli.progress import ProgressBar
from ninfer.cli.prompts import STDIN, read_stdin, read_utf8
from ninfer.types import EngineOptions

if TYPE_CHECKING:
    from ninfer.runtime.scoring import ScoreReport, StreamScore, TokenScore


def score(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="UTF-8 text files; - reads stdin.", show_default=False)
    ],
    model: ModelOptionFlag,
    compute: ComputeFlags,
    context: Annotated[int, typer.Option("--context", metavar="N", min=2, help="Tokens per window.")] = 4096,
    stride: Annotated[
        int | None,
        typer.Option("--stride", metavar="N", min=1, help="Tokens between windows.", show_default="half of --context"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the JSON report there.", show_default=False)
    ] = None,
    token_logprobs: Annotated[
        Path | None,
        typer.Option(
            "--token-logprobs", metavar="FILE", help="Write one JSON line per scored token.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON report instead of a table.")] = False,
) -> None:
    """Score texts: mean negative log-likelihood and perplexity, per file and overall."""
    step = context // 2 if stride is None else stride
    if step >= context:
        raise UsageMistake(f"--stride {step} must be less than --context {context}")
    for path in (output, token_logprobs):
        if path is not None:
            check_writable(path)
    streams = _streams(corpus)
    chosen = choose_model(model.model_option)
    report = _score(chosen, streams, compute.options(), context, step, token_logprobs)
    rendered = _report_json(report, chosen, compute.options())
    if output is not None:
        write_text(output, to_json(rendered) + "\n")
    if json:
        print_json(rendered)
    else:
        _print_table(report)


def _streams(corpus: Sequence[str]) -> list[tuple[str, str]]:
    """(name, text) of every file, read before any model is loaded, so that mistakes show at once."""
    repeated = next((name for name in corpus if corpus.count(name) > 1), None)
    if repeated is not None:
        raise UsageMistake(f"{repeated} is given twice")
    streams = [(name, read_stdin() if name == STDIN else read_utf8(Path(name))) for name in corpus]
    empty = next((name for name, text in streams if not text), None)
    if empty is not None:
        raise CommandError(f"{'standard input' if empty == STDIN else empty} is empty: nothing to score")
    return streams


def _score(
    model: Path,
    streams: Sequence[tuple[str, str]],
    options: EngineOptions,
    context: int,
    stride: int,
    token_logprobs: Path | None,
) -> ScoreReport:
    with (
        _token_lines(token_logprobs) as lines,
        ProgressBar() as bar,
        factories.open_scorer(model, options, context, stride, bar.report) as scorer,
    ):
        return scorer.score(streams, on_token=None if lines is None else _line_writer(lines), progress=bar.report)


@contextmanager
def _token_lines(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with whole_file(path) as stream:
        yield stream


def _line_writer(stream: TextIO) -> Callable[[TokenScore], None]:
    def write(token: TokenScore) -> None:
        stream.write(json_module.dumps(asdict(token), ensure_ascii=False) + "\n")

    return write


def _report_json(report: ScoreReport, model: Path, options: EngineOptions) -> dict[str, object]:
    settings = {
        "model": str(model),
        "context": report.context,
        "stride": report.stride,
        "device": options.device,
        "threads": options.threads,
        "kv_dtype": options.kv_dtype.value,
        "prefill_chunk": options.prefill_chunk,
    }
    return {
        "settings": settings,
        "streams": [{"stream": item.stream, **_numbers(item)} for item in report.streams],
        "overall": _numbers(report.overall),
    }


def _numbers(item: StreamScore) -> dict[str, object]:
    return {
        "tokens": item.tokens,
        "scored_tokens": item.scored_tokens,
        "mean_nll": _finite(item.mean_nll),
        "perplexity": _finite(item.perplexity),
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN (nothing scored) and no infinity (hopeless predictions)."""
    return value if math.isfinite(value) else None


def _print_table(report: ScoreReport) -> None:
    from rich.table import Table

    table = Table(title=f"context {report.context}, stride {report.stride}", title_justify="left")
    table.add_column("stream", overflow="fold")
    for name in ("tokens", "scored", "mean NLL", "perplexity"):
        table.add_column(name, justify="right")
    for item in (*report.streams, report.overall):
        name = "overall" if item is report.overall else item.stream
        table.add_row(
            name, f"{item.tokens:,}", f"{item.scored_tokens:,}", f"{item.mean_nll:.6f}", f"{item.perplexity:.4f}"
        )
    table_console().print(table)
