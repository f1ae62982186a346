"""Measures the checkpoint in this folder on held-out prompts and writes metrics.json and heldout.json.

Replies are generated greedily by `transformers` in fp32 from the stored bf16 weights. The MTP head, which
`transformers` leaves out, runs in the recipe's own model; its trunk is checked against transformers' first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import jinja2
import torch
from chat import END_OF_TURN, Document, Encoder, load_template, split_replies
from data import Dialogue, Turn, is_held_out
from export import write_json
from mixture import SKILLS, dialogue_of, draw
from model import DemoConfig, DemoModel, RowLayout
from safetensors.torch import load_file
from smalltalk import remember
from tokenizer import read_chapters
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
BATCH = 50
PROCESSES = 2
SAMPLED_SKILLS = ("arithmetic", "copy_1_20", "copy_21_40", "json", "tools")
COPY_LENGTHS = {"copy_1_20": (1, 20), "copy_21_40": (21, 40), "copy_41_62": (41, 62)}


@cache
def template() -> jinja2.Template:
    return load_template()


@dataclass(frozen=True, slots=True)
class Question:
    """A dialogue whose last reply is to be generated, and that reply's exact content."""

    skill: str
    dialogue: Dialogue
    expected: str

    @property
    def prompt_messages(self) -> list[dict[str, object]]:
        return self.dialogue.messages[:-1]


def question(rng: Random, skill: str, turns: list[Turn], thinking: bool) -> Question:
    """Ask for the reply to the last turn (for a tool turn: for the call, not for what follows it)."""
    dialogue = dialogue_of(rng, turns, thinking, with_tool_reply=False)
    text = template().render(messages=dialogue.messages, tools=dialogue.tools)
    reply = [piece for piece, is_reply in split_replies(text) if is_reply][-1].removesuffix(END_OF_TURN)
    return Question(skill, dialogue, content_of(reply))


def content_of(reply: str) -> str:
    return reply.rpartition("</think>")[2].strip()


def after_tool_question(rng: Random, thinking: bool) -> Question:
    turn = draw(rng, "tools", True)
    return Question("tool_reply", dialogue_of(rng, [turn], thinking, with_tool_reply=True), turn.after_tool)


def single(rng: Random, skill: str) -> list[Turn]:
    return [draw(rng, skill, True)]


def copy_between(rng: Random, low: int, high: int) -> list[Turn]:
    while True:
        turn = draw(rng, "copy", True)
        if low <= len(turn.answer) <= high:
            return [turn]


def arithmetic_with(rng: Random, signs: str) -> list[Turn]:
    while True:
        turn = draw(rng, "arithmetic", True)
        if any(f" {sign} " in turn.answer for sign in signs):
            return [turn]


def remembering(rng: Random) -> list[Turn]:
    """A held-out question for a fact told two turns earlier."""
    while True:
        told, asked = remember(rng)
        if is_held_out(asked.key):
            return [told, draw(rng, rng.choice(["copy", "capitals", "arithmetic"]), False), asked]


def multi_turn(rng: Random) -> list[Turn]:
    """A held-out turn of any skill after one or two others."""
    earlier = [draw(rng, rng.choice(list(SKILLS)), False) for _ in range(rng.randint(1, 2))]
    return [*earlier, draw(rng, rng.choice(list(SKILLS)), True)]


def questions(seed: int, count: int) -> dict[str, list[Question]]:
    """Return `count` questions per skill, every second one with thinking on."""
    makers: dict[str, Callable[[Random], list[Turn]]] = {
        "arithmetic": partial(arithmetic_with, signs="+-"),
        "times_table": partial(arithmetic_with, signs="*"),
        "remember": remembering,
        "multi_turn": multi_turn,
    }
    for name, (low, high) in COPY_LENGTHS.items():
        makers[name] = partial(copy_between, low=low, high=high)
    for name in ("json", "tools", "capitals", "identity", "small_talk", "decline"):
        makers[name] = partial(single, skill=name)
    asked: dict[str, list[Question]] = {}
    for name, make in makers.items():
        rng = Random(f"{seed}/{name}")
        asked[name] = [question(rng, name, make(rng), i % 2 == 0) for i in range(count)]
    rng = Random(f"{seed}/tool_reply")
    asked["tool_reply"] = [after_tool_question(rng, i % 2 == 0) for i in range(count)]
    return asked


class Answerer:
    """Generates replies in batches with transformers."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, asked: Question) -> str:
        return self.tokenizer.apply_chat_template(
            asked.prompt_messages,
            tools=asked.dialogue.tools or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=asked.dialogue.thinking,
        )

    def replies(self, batch: list[Question], sample: bool) -> list[str]:
        """Return the contents of the replies, greedy or sampled as generation_config.json says."""
        encoded = self.tokenizer([self.prompt(q) for q in batch], return_tensors="pt", padding=True)
        options = {} if sample else {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        out = self.model.generate(**encoded, max_new_tokens=120, **options)
        new = out[:, encoded["input_ids"].shape[1] :]
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=False)
        return [content_of(text.partition(END_OF_TURN)[0]) for text in texts]


@cache
def answerer(folder: Path) -> Answerer:
    return Answerer(folder)


def skill_row(folder: Path, asked: list[Question], sample: bool, show: int) -> dict[str, object]:
    """Return the exact-match accuracy of one skill's questions, in all and by the thinking flag."""
    torch.manual_seed(0)
    order = sorted(asked, key=lambda q: len(q.expected))
    marks: list[tuple[bool, bool]] = []
    for begin in range(0, len(order), BATCH):
        batch = order[begin : begin + BATCH]
        for q, reply in zip(batch, answerer(folder).replies(batch, sample), strict=True):
            marks.append((q.dialogue.thinking, reply == q.expected))
            if reply != q.expected and show > 0:
                print(f"  {q.skill}: wanted {q.expected!r}\n    got {reply!r}", flush=True)
                show -= 1
    return {
        "samples": len(marks),
        "accuracy": share(mark for _, mark in marks),
        "accuracy_thinking": share(mark for thinking, mark in marks if thinking),
        "accuracy_no_thinking": share(mark for thinking, mark in marks if not thinking),
    }


def share(marks: Iterable[bool]) -> float:
    values = list(marks)
    return round(sum(values) / max(1, len(values)), 4)


@torch.no_grad()
def text_figures(folder: Path, chapters: list[str]) -> dict[str, object]:
    """Return bits per byte and perplexity per token of held-out chapters, each cut at 1024 tokens."""
    model, tokenizer = answerer(folder).model, answerer(folder).tokenizer
    nats, tokens, size = 0.0, 0, 0
    for chapter in chapters:
        ids = tokenizer(chapter, add_special_tokens=False)["input_ids"][:1024]
        row = torch.tensor([ids])
        logits = model(row).logits[0, :-1].log_softmax(-1)
        nats -= logits.gather(1, row[0, 1:, None]).sum().item()
        tokens += len(ids) - 1
        size += len(tokenizer.decode(ids[1:]).encode())
    return {
        "chapters": len(chapters),
        "tokens": tokens,
        "bytes": size,
        "bits_per_byte": round(nats / math.log(2) / size, 4),
        "perplexity_per_token": round(math.exp(nats / tokens), 3),
    }


def own_model(folder: Path) -> DemoModel:
    model = DemoModel(DemoConfig())
    model.load_state_dict({n: t.float() for n, t in load_file(folder / "model.safetensors").items()})
    return model


@torch.no_grad()
def check_trunk(folder: Path) -> float:
    """Return the largest logit difference between transformers and the recipe's model on random tokens."""
    own = own_model(folder)
    ids = torch.randint(0, 2000, (1, 256), generator=torch.Generator().manual_seed(0))
    mine = own.logits(own.model(ids, RowLayout.of(torch.arange(256)[None], own.config)))
    difference = (answerer(folder).model(ids).logits - mine).abs().max().item()
    assert difference < 1e-3, f"recipe and transformers differ by {difference}"
    return difference


@torch.no_grad()
def agreement(model: DemoModel, documents: list[Document]) -> dict[str, object]:
    """Return at how many target tokens the MTP head's argmax is the main head's, with the text given."""
    equal = total = 0
    for document in documents:
        length = min(1024, len(document.ids))
        row = torch.tensor([document.ids[:length] + [0] * (-length % 64)])
        layout = RowLayout.of(torch.arange(row.shape[1])[None], model.config)
        hidden = model.model(row, layout)
        proposed = model.mtp(hidden, model.model.embed_tokens(row.roll(-1, 1)), layout)
        main = model.logits(hidden).argmax(-1)[0, 1 : length - 1]
        draft = model.logits(proposed).argmax(-1)[0, : length - 2]
        flags = torch.tensor(document.targets[2:length], dtype=torch.bool)
        equal += int((main == draft)[flags].sum())
        total += int(flags.sum())
    return {"tokens": total, "agreement": round(equal / total, 4)}


def mtp_figures(folder: Path, chapters: list[str], seed: int) -> dict[str, object]:
    """Return the MTP head's agreement with the main head on held-out replies and chapters."""
    encoder = Encoder(answerer(folder).tokenizer.backend_tokenizer, template())
    documents: dict[str, list[Document]] = {}
    for skill in ("arithmetic", "copy", "json", "tools"):
        rng = Random(f"{seed}/mtp/{skill}")
        asked = [dialogue_of(rng, [draw(rng, skill, True)], i % 2 == 0, True) for i in range(60)]
        documents[skill] = [encoder.dialogue(d) for d in asked]
    documents["free_text"] = [encoder.text(chapter) for chapter in chapters[:20]]
    return {name: agreement(own_model(folder), pieces) for name, pieces in documents.items()}


def heldout_questions(seed: int) -> dict[str, list[Question]]:
    """Return the questions of heldout.json: 80 of arithmetic and 80 of copying, half with thinking."""
    asked: dict[str, list[Question]] = {}
    for skill in ("arithmetic", "copy"):
        rng = Random(f"{seed}/heldout.json/{skill}")
        asked[skill] = [question(rng, skill, [draw(rng, skill, True)], i % 2 == 0) for i in range(80)]
    return asked


def heldout_json(asked: dict[str, list[Question]]) -> list[dict[str, object]]:
    return [
        {"skill": q.skill, "thinking": q.dialogue.thinking, "messages": q.prompt_messages, "expected": q.expected}
        for questions_of_skill in asked.values()
        for q in questions_of_skill
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--text", type=Path, help="output of `bible -f Gen1:1-Rev22:21`; default: run it")
    parser.add_argument("--count", type=int, default=120, help="questions per skill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print this many wrong replies per skill")
    arguments = parser.parse_args()
    folder: Path = arguments.model
    check_trunk(folder)
    asked, held = questions(arguments.seed, arguments.count), heldout_questions(arguments.seed)
    _, chapters = read_chapters(arguments.text)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        rows = {s: pool.submit(skill_row, folder, qs, False, arguments.show) for s, qs in asked.items()}
        held_rows = {s: pool.submit(skill_row, folder, qs, False, 0) for s, qs in held.items()}
        sampled = {s: pool.submit(skill_row, folder, asked[s], True, 0) for s in SAMPLED_SKILLS}
        text = pool.submit(text_figures, folder, chapters)
        mtp = pool.submit(mtp_figures, folder, chapters, arguments.seed)
        metrics = {
            "measured_with": "transformers, greedy, fp32 arithmetic on the stored bf16 weights; exact match",
            "skills": {skill: job.result() for skill, job in rows.items()},
            "heldout_json": {skill: job.result() for skill, job in held_rows.items()},
            "sampled_as_generation_config": {skill: job.result() for skill, job in sampled.items()},
            "free_text": text.result(),
            "mtp_agreement_with_main_argmax": mtp.result(),
        }
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "heldout.json", heldout_json(held))


if __name__ == "__main__":
    main()
