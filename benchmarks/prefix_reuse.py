"""Prefix reuse: what is computed again where prompts repeat, grow, branch and are shared, and the latency it saves.

Five scenarios of exact lengths, each against its limit of recomputed tokens (prompt - reused), and the replay of an
agent trace: several conversations in turn, with tools, growing histories, edits and regenerated answers. Everything is
asked twice, without the cache (cold) and with it (warm); the greedy answers must be the same.

    python benchmarks/prefix_reuse.py [--model FILE | --random [--layers N]] [--trace FILE | --conversations N]
                                      [--threads N] [--json FILE]

`--random` takes a random model with the geometry of the 0.8B family member and the demo's tokenizer and template.
A trace file has one conversation per line, a list of OpenAI-style messages or {"messages": […], "tools": […]}; every
assistant message stands for one request. Exit status 1: a limit was missed, or an answer changed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from agent_trace import Conversation, agent_trace, load_trace
from convert_speed import write_checkpoint
from reuse_scenarios import Client, Outcome, Visit, options, run_scenarios

from ninfer.bench.client import token_pool
from ninfer.cli.models import demo_model
from ninfer.convert import convert
from ninfer.engine import Engine
from ninfer.types import CacheUse, ChatPrompt, GenerationResult, Message

FRONTEND = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def replay(client: Client, trace: Sequence[Conversation], cache: CacheUse, new_tokens: int = 24) -> list[Visit]:
    """Every conversation takes its next turn, round by round."""
    histories: list[list[Message]] = [[] for _ in trace]
    visits = []
    for turns in zip_longest(*(conversation.turns for conversation in trace)):
        for number, turn in enumerate(turns):
            if turn is None:
                continue
            history = histories[number]
            del history[len(history) - turn.drop :]
            history.extend(turn.add)
            prompt = ChatPrompt(tuple(history), trace[number].tools)
            visit, result = client.answer(prompt, f"conversation {number}", cache, new_tokens)
            history.append(turn.recorded or _own(result))
            visits.append(visit)
    return visits


def _own(result: GenerationResult) -> Message:
    return Message("assistant", result.text, reasoning=result.reasoning or None, tool_calls=result.tool_calls)


# --- the report -----------------------------------------------------------------------------------------------


def measure(engine: Engine, trace: Sequence[Conversation]) -> dict[str, Any]:
    """Scenarios and trace on one Engine."""
    client, vocabulary = Client(engine), token_pool(engine)
    client.ask([vocabulary[0]] * 64, cache=CacheUse.DISABLED)
    outcomes = list(run_scenarios(client, vocabulary))
    cold = replay(client, trace, CacheUse.DISABLED)
    warm = replay(client, trace, CacheUse.READ_WRITE)
    return {
        "model": engine.info.name,
        "parameters": engine.info.parameters,
        "threads": engine.info.threads,
        "scenarios": [_scenario_json(outcome) for outcome in outcomes],
        "trace": _trace_json(cold, warm),
    }


def _scenario_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "prompt_tokens": outcome.warm.prompt,
        "reused_tokens": outcome.warm.reused,
        "source": outcome.warm.source,
        "recomputed_tokens": outcome.recomputed,
        "limit": outcome.limit,
        "ttft_cold": outcome.cold.ttft,
        "ttft_warm": outcome.warm.ttft,
        "same_answer": outcome.cold.answer == outcome.warm.answer,
        "passed": outcome.passed,
    }


def _trace_json(cold: Sequence[Visit], warm: Sequence[Visit]) -> dict[str, Any]:
    same = [visit.answer for visit in cold] == [visit.answer for visit in warm]
    prompt, reused = sum(visit.prompt for visit in warm), sum(visit.reused for visit in warm)
    return {
        "requests": len(warm),
        "prompt_tokens": prompt,
        "reused_tokens": reused,
        "reuse_rate": reused / prompt,
        "sources": dict(Counter(visit.source for visit in warm)),
        "ttft_cold_median": statistics.median(visit.ttft for visit in cold),
        "ttft_warm_median": statistics.median(visit.ttft for visit in warm),
        "same_answers": same,
        "passed": same,
    }


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['model']}, {result['parameters'] / 1e6:.1f} M parameters, {result['threads']} threads")
    print(f"{'scenario':<36}{'prompt':>8}{'computed':>10}{'limit':>7}{'cold ms':>10}{'warm ms':>9}  {'source':<18}")
    for row in result["scenarios"]:
        times = f"{1e3 * row['ttft_cold']:>10.1f}{1e3 * row['ttft_warm']:>9.1f}"
        verdict = "pass" if row["passed"] else "FAIL"
        print(
            f"{row['name']:<36}{row['prompt_tokens']:>8}{row['recomputed_tokens']:>10}{row['limit']:>7}{times}"
            f"  {row['source']:<18}{verdict}"
        )
    trace = result["trace"]
    print(
        f"trace of {trace['requests']} requests: {trace['reuse_rate']:.1%} of {trace['prompt_tokens']} prompt tokens "
        f"reused, median time to first token {1e3 * trace['ttft_cold_median']:.1f} ms cold, "
        f"{1e3 * trace['ttft_warm_median']:.1f} ms warm, answers {'the same' if trace['same_answers'] else 'DIFFER'}"
    )
    print("  from " + ", ".join(f"{source} {count}" for source, count in trace["sources"].items()))


def random_model(folder: Path, layers: int) -> Path:
    """A q8 artifact of random weights with the geometry of the 0.8B model and the demo's frontend files."""
    source, target = folder / "source", folder / "random.ninfer"
    source.mkdir()
    write_checkpoint(source, layers)
    for name in FRONTEND:
        shutil.copy(Path(__file__).parents[1] / "examples" / "demo" / name, source)
    convert(source, target, recipe="q8")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="an artifact with a chat template (the demo)")
    parser.add_argument("--random", action="store_true", help="a random model of 0.8B geometry instead")
    parser.add_argument("--layers", type=int, default=24, help="layers of the random model")
    parser.add_argument("--trace", type=Path, help="conversations to replay instead of the built-in ones")
    parser.add_argument("--conversations", type=int, default=3, help="how many of the built-in conversations")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    trace = load_trace(arguments.trace) if arguments.trace else agent_trace(arguments.conversations)
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or demo_model()
        if arguments.random:
            model = random_model(Path(folder), arguments.layers)
        with Engine(model, options(arguments.threads)) as engine:
            result = measure(engine, trace)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))
    sys.exit(0 if all(row["passed"] for row in (*result["scenarios"], result["trace"])) else 1)


if __name__ == "__main__":
    main()
