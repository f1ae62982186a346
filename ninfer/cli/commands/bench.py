"""`ninfer bench`: latency and throughput."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer.cli import factories
from ninfer.cli.engine_flags import CapacityFlags, ComputeFlags
from ninfer.cli.failures import UsageMistake
from ninfer.cli.flags import ModelOptionFlag
from ninfer.cli.models import choose_model
from ninfer.cli.outputs import check_writable, print_json, say, table_console, to_json, whole_path, write_text
from ninfer.cli.progress import ProgressBar
from ninfer.cli.prompts import STDIN
from ninfer.types import EngineOptions

if TYPE_CHECKING:
    from ninfer.bench.micro import MicroPoint, MicroResult
    from ninfer.bench.replay import RequestRecord
    from ninfer.bench.report import LoadReport
    from ninfer.bench.trace import Trace
    from ninfer.engine import Engine

LARGEST_BATCH = 8
PAGE_TOKENS = 64


def _positive(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter("must be a positive number")
    return value


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """How a trace is replayed and judged."""

    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            help="With --trace: closed loop with N clients. With --tg: the batch.",
            show_default=False,
        ),
    ] = None
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", metavar="X", callback=_positive, help="Open loop: replay N times as fast.", show_default="1"
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Only the first N requests of the trace.", show_default=False),
    ] = None
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="Answer without thinking first.")] = False
    slo_ttft_ms: Annotated[
        float | None,
        typer.Option("--slo-ttft-ms", metavar="MS", min=0, help="Goodput: time to first token.", show_default=False),
    ] = None
    slo_itl_ms: Annotated[
        float | None,
        typer.Option(
            "--slo-itl-ms", metavar="MS", min=0, help="Goodput: mean inter-token latency.", show_default=False
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ReportFlags:
    """Where results go."""

    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON there; - for stdout.", show_default=False)
    ] = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Plot a --trace run.", show_default=False)
    ] = None


def bench(
    model: ModelOptionFlag,
    compute: ComputeFlags,
    capacity: CapacityFlags,
    load: TraceFlags,
    report: ReportFlags,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Replay a JSON-lines trace.", show_default=False)
    ] = None,
    micro: Annotated[bool, typer.Option("--micro", help="Measure a fixed set of points.")] = False,
    pp: Annotated[
        int | None,
        typer.Option("--pp", metavar="N", min=1, help="Measure reading N prompt tokens.", show_default=False),
    ] = None,
    tg: Annotated[
        int | None, typer.Option("--tg", metavar="N", min=2, help="Measure writing N tokens.", show_default=False)
    ] = None,
    depth: Annotated[
        int,
        typer.Option("--depth", metavar="N", min=0, help="With --tg: write after a prompt of N tokens."),
    ] = 0,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Repetitions of every point.")] = 3,
) -> None:
    """Measure a model: replay a request trace, or time fixed points (tokens per second)."""
    points_asked = pp is not None or tg is not None
    if depth and tg is None:
        raise UsageMistake("--depth needs --tg")
    if (trace is not None) + micro + points_asked != 1:
        raise UsageMistake("give one of --trace FILE, --micro, or --pp N and/or --tg N")
    _check_outputs(report, trace is not None)
    options = capacity.options(compute)
    if trace is not None:
        lanes_given = capacity.max_concurrency is not None
        _bench_trace(trace, choose_model(model.model_option), options, load, report, lanes_given)
    else:
        points = _points(pp, tg, load.concurrency, depth)
        _bench_points(points, choose_model(model.model_option), options, repeat, report)


def _check_outputs(report: ReportFlags, replaying: bool) -> None:
    """Refuse impossible outputs before an hour of measuring, not after it."""
    if report.json is not None and report.json != STDIN:
        check_writable(Path(report.json))
    if report.plot is None:
        return
    if not replaying:
        raise UsageMistake("--plot needs --trace")
    from ninfer.bench.plot import check_available

    check_available()
    check_writable(report.plot)


def _bench_trace(
    path: Path, model: Path, options: EngineOptions, load: TraceFlags, report: ReportFlags, lanes_given: bool
) -> None:
    from ninfer.bench.report import record_json
    from ninfer.bench.tables import latency_table, totals_table
    from ninfer.bench.trace import load_trace

    if load.concurrency is not None and load.speed is not None:
        raise UsageMistake("--speed is for the open loop, --concurrency for the closed one: drop one")
    trace = load_trace(path, load.limit)
    if load.concurrency is not None and not lanes_given:
        options = replace(options, max_concurrency=min(load.concurrency, LARGEST_BATCH))
    replay = _replay(trace, model, options, load)
    result = {"mode": "trace", "settings": _trace_settings(path, trace, load, options), "model": replay.model}
    _write(
        report, result | {"report": asdict(replay.report), "requests": [record_json(item) for item in replay.records]}
    )
    if report.plot is not None:
        from ninfer.bench.plot import plot_replay

        with whole_path(report.plot) as temporary:
            plot_replay(replay.records, temporary)
    if replay.report.skipped:
        say(f"skipped {replay.report.skipped} requests beyond the context of {replay.model['max_context']} tokens")
    for error in replay.report.errors:
        say(f"request error: {error}")
    if report.json != STDIN:
        console = table_console()
        console.print(latency_table(replay.report))
        console.print(totals_table(replay.report))


@dataclass(frozen=True, slots=True)
class _Replay:
    """What one replay produced, and the model it ran on."""

    report: LoadReport
    records: Sequence[RequestRecord]
    model: Mapping[str, object]


def _replay(trace: Trace, model: Path, options: EngineOptions, load: TraceFlags) -> _Replay:
    import asyncio

    from ninfer.bench.client import count_tokens, event_stream, kv_occupancy, token_pool
    from ninfer.bench.replay import closed_loop, open_loop
    from ninfer.bench.report import Slo, summarise
    from ninfer.bench.workload import build_workload

    slo = Slo(_seconds(load.slo_ttft_ms), _seconds(load.slo_itl_ms))
    occupancy: list[float] = []
    with ProgressBar() as bar, factories.open_engine(model, options, bar.report) as engine:
        limit = engine.info.max_context
        thinking = False if load.no_thinking else None
        work = build_workload(trace, limit, token_pool(engine), lambda prompt: count_tokens(engine, prompt), thinking)
        finished = 0

        def done(record: RequestRecord) -> None:
            nonlocal finished
            finished += 1
            bar.report("requests", finished, len(work.items))

        def sample() -> None:
            occupancy.append(kv_occupancy(engine))

        stream = event_stream(engine, sample)
        if load.concurrency is None:
            records = asyncio.run(open_loop(work.items, stream, load.speed or 1.0, done))
        else:
            records = asyncio.run(closed_loop(work.items, stream, load.concurrency, done))
        return _Replay(summarise(records, work.skipped, slo, occupancy), records, _model_json(engine))


def _trace_settings(path: Path, trace: Trace, load: TraceFlags, options: EngineOptions) -> dict[str, object]:
    loop = {"loop": "open", "speed": load.speed or 1.0}
    if load.concurrency is not None:
        loop = {"loop": "closed", "concurrency": load.concurrency}
    slo = {"slo_ttft_ms": load.slo_ttft_ms, "slo_itl_ms": load.slo_itl_ms}
    return (
        {"trace": str(path), "form": trace.form.value, "requests": len(trace.requests)}
        | loop
        | slo
        | _options_json(options)
    )


def _points(pp: int | None, tg: int | None, batch: int | None, depth: int) -> tuple[MicroPoint, ...]:
    from ninfer.bench.micro import STANDARD_POINTS, chosen_points

    if batch is not None and (batch > LARGEST_BATCH or tg is None):
        raise UsageMistake(f"--concurrency {batch}: without --trace it needs --tg and is at most {LARGEST_BATCH}")
    return STANDARD_POINTS if pp is None and tg is None else chosen_points(pp, tg, batch or 1, depth)


def _bench_points(
    points: Sequence[MicroPoint], model: Path, options: EngineOptions, repeat: int, report: ReportFlags
) -> None:
    import asyncio

    from ninfer.bench.client import event_stream, token_pool
    from ninfer.bench.micro import measure
    from ninfer.bench.tables import micro_table

    options = _sized_for(points, options)
    with ProgressBar() as bar, factories.open_engine(model, options, bar.report) as engine:
        total = sum(point.batch for point in points) * (repeat + 1)
        finished = 0

        def done(record: RequestRecord) -> None:
            nonlocal finished
            finished += 1
            bar.report("requests", finished, total)

        results = asyncio.run(measure(points, event_stream(engine), token_pool(engine), repeat, done))
        described = _model_json(engine)
    settings = {"repeat": repeat} | _options_json(options)
    _write(
        report,
        {
            "mode": "points",
            "settings": settings,
            "model": described,
            "results": [_point_json(item) for item in results],
        },
    )
    if report.json != STDIN:
        table_console().print(micro_table(results))


def _sized_for(points: Sequence[MicroPoint], options: EngineOptions) -> EngineOptions:
    """Lanes, context and KV pages that let every point run with its whole batch, unless the user chose them.

    Prompts that are kept for the repetitions take their pages beside those of the answers.
    """
    lanes = max(options.max_concurrency, max(point.batch for point in points))
    context = options.max_context or max(point.context for point in points)
    kept = 2 if any(point.is_deep for point in points) else 1
    pages = options.kv_capacity or kept * lanes * -(-context // PAGE_TOKENS)
    return replace(options, max_concurrency=lanes, max_context=context, kv_capacity=pages)


def _point_json(result: MicroResult) -> dict[str, object]:
    rates = {"median": result.median, "slowest": result.slowest, "fastest": result.fastest, "all": result.rates}
    return {"point": result.point.name, **asdict(result.point), "tokens_per_second": rates}


def _model_json(engine: Engine) -> dict[str, object]:
    info = engine.info
    return {
        "name": info.name,
        "parameters": info.parameters,
        "device": info.device,
        "threads": info.threads,
        "max_context": info.max_context,
        "kv_dtype": info.kv_dtype,
    }


def _options_json(options: EngineOptions) -> dict[str, object]:
    return asdict(options) | {"kv_dtype": options.kv_dtype.value}


def _write(report: ReportFlags, result: Mapping[str, object]) -> None:
    if report.json == STDIN:
        print_json(result)
    elif report.json is not None:
        write_text(Path(report.json), to_json(result) + "\n")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0
