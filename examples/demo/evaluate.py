"""Measures the checkpoint in this folder on held-out prompts and writes metrics.json and heldout.json.

Replies are generated greedily by `transformers` in fp32 from the stored bf16 weights. The MTP head, which
`transformers` leaves out, runs in the recipe's own model; its trunk is checked against transformers' first.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import jinja2
import torch
from chat import END_OF_TURN, Encoder, load_template, split_replies
from data import Dialogue, Turn, is_held_out
from export import write_json
from mixture import SKILLS, dialogue_of, draw
from model import DemoConfig, DemoModel, RowLayout
from safetensors.torch import load_file
from smalltalk import remember
from tokenizer import read_chapters
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

HERE = Path(__file__).parent
BATCH = 32
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


def questions(seed: int, count: int) -> list[Question]:
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
    asked = []
    for name, make in makers.items():
        rng = Random(f"{seed}/{name}")
        asked += [question(rng, name, make(rng), i % 2 == 0) for i in range(count)]
    rng = Random(f"{seed}/tool_reply")
    return asked + [after_tool_question(rng, i % 2 == 0) for i in range(count)]


class Answerer:
    """Generates replies in batches with transformers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer

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
        out = self.model.generate(**encoded, max_new_tokens=160, **options)
        new = out[:, encoded["input_ids"].shape[1] :]
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=False)
        return [content_of(text.partition(END_OF_TURN)[0]) for text in texts]

    def marks(self, asked: list[Question], sample: bool = False, show: int = 0) -> list[bool]:
        """Tell for each question whether the reply's content is exactly the expected one."""
        order = sorted(range(len(asked)), key=lambda i: len(self.prompt(asked[i])))
        marks = [False] * len(asked)
        for begin in range(0, len(order), BATCH):
            indices = order[begin : begin + BATCH]
            for i, reply in zip(indices, self.replies([asked[i] for i in indices], sample), strict=True):
                marks[i] = reply == asked[i].expected
                if not marks[i] and show > 0:
                    print(f"  {asked[i].skill}: wanted {asked[i].expected!r}\n    got {reply!r}")
                    show -= 1
        return marks


def accuracy(asked: list[Question], marks: list[bool]) -> dict[str, dict[str, object]]:
    """Return exact-match accuracy per skill, in all and by the thinking flag, with sample counts."""
    table: dict[str, dict[str, object]] = {}
    for skill in dict.fromkeys(q.skill for q in asked):
        rows = [(q.dialogue.thinking, mark) for q, mark in zip(asked, marks, strict=True) if q.skill == skill]
        table[skill] = {
            "samples": len(rows),
            "accuracy": share(mark for _, mark in rows),
            "accuracy_thinking": share(mark for thinking, mark in rows if thinking),
            "accuracy_no_thinking": share(mark for thinking, mark in rows if not thinking),
        }
    return table


def share(marks: Iterable[bool]) -> float:
    values = list(marks)
    return round(sum(values) / max(1, len(values)), 4)


@torch.no_grad()
def text_figures(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chapters: list[str]) -> dict[str, object]:
    """Return bits per byte and perplexity per token of held-out chapters, each cut at 1024 tokens."""
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


@torch.no_grad()
def mtp_agreement(model: DemoModel, documents: Iterable[tuple[list[int], list[int]]]) -> tuple[int, int]:
    """Count at how many target tokens the MTP head's argmax equals the main head's, and of how many."""
    equal = total = 0
    for ids, targets in documents:
        padding = -len(ids) % 64
        row = torch.tensor([ids + [0] * padding])
        positions = torch.arange(row.shape[1])[None]
        layout = RowLayout.of(positions, model.config)
        hidden = model.model(row, layout)
        proposed = model.mtp(hidden, model.model.embed_tokens(row.roll(-1, 1)), layout)
        main = model.logits(hidden).argmax(-1)[0, 1 : len(ids) - 1]
        draft = model.logits(proposed).argmax(-1)[0, : len(ids) - 2]
        flags = torch.tensor(targets[2:], dtype=torch.bool)
        equal += int((main == draft)[flags].sum())
        total += int(flags.sum())
    return equal, total


def mtp_figures(weights: dict[str, Tensor], encoder: Encoder, chapters: list[str], seed: int) -> dict[str, object]:
    """Return the MTP head's agreement with the main argmax, teacher-forced, on held-out replies and text."""
    model = DemoModel(DemoConfig())
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    figures: dict[str, object] = {}
    for skill in ("arithmetic", "copy", "json", "tools"):
        rng = Random(f"{seed}/mtp/{skill}")
        dialogues = [dialogue_of(rng, [draw(rng, skill, True)], i % 2 == 0, True) for i in range(60)]
        documents = [encoder.dialogue(d) for d in dialogues]
        figures[skill] = agreement(model, [(d.ids, d.targets) for d in documents])
    texts = [encoder.text(chapter) for chapter in chapters[:20]]
    figures["free_text"] = agreement(model, [(d.ids[:1024], d.targets[:1024]) for d in texts])
    return figures


def agreement(model: DemoModel, documents: list[tuple[list[int], list[int]]]) -> dict[str, object]:
    equal, total = mtp_agreement(model, documents)
    return {"tokens": total, "agreement": round(equal / total, 4)}


@torch.no_grad()
def check_trunk(model: PreTrainedModel, weights: dict[str, Tensor]) -> float:
    """Return the largest logit difference between transformers and the recipe's model on random tokens."""
    own = DemoModel(DemoConfig())
    own.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    ids = torch.randint(0, 2000, (1, 256), generator=torch.Generator().manual_seed(0))
    mine = own.logits(own.model(ids, RowLayout.of(torch.arange(256)[None], own.config)))
    difference = (model(ids).logits - mine).abs().max().item()
    assert difference < 1e-3, f"recipe and transformers differ by {difference}"
    return difference


def heldout_entries(seed: int) -> list[Question]:
    """Return the questions of heldout.json: 80 of arithmetic and 80 of copying, half with thinking."""
    rng = Random(f"{seed}/heldout.json")
    turns = [draw(rng, "arithmetic", True) for _ in range(80)] + [draw(rng, "copy", True) for _ in range(80)]
    return [question(rng, turn.skill, [turn], i % 2 == 0) for i, turn in enumerate(turns)]


def heldout_json(asked: list[Question]) -> list[dict[str, object]]:
    return [
        {
            "skill": q.skill,
            "thinking": q.dialogue.thinking,
            "messages": q.prompt_messages,
            "expected": q.expected,
        }
        for q in asked
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--text", type=Path, help="output of `bible -f Gen1:1-Rev22:21`; default: run it")
    parser.add_argument("--count", type=int, default=200, help="questions per skill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print this many wrong replies")
    parser.add_argument("--only-accuracy", action="store_true", help="print the accuracies and write nothing")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    weights = load_file(arguments.model / "model.safetensors")
    check_trunk(model, weights)
    answerer = Answerer(model, tokenizer)
    asked = questions(arguments.seed, arguments.count)
    skills = accuracy(asked, answerer.marks(asked, show=arguments.show))
    for skill, row in skills.items():
        print(f"{skill:12} {row}")
    if arguments.only_accuracy:
        return
    held = heldout_entries(arguments.seed)
    sampled = [q for q in asked if q.skill in ("arithmetic", "copy_1_20", "copy_21_40", "json", "tools")]
    _, chapters = read_chapters(arguments.text)
    encoder = Encoder(tokenizer.backend_tokenizer, template())
    metrics = {
        "measured_with": "transformers, greedy, fp32 arithmetic on the stored bf16 weights; exact match",
        "skills": skills,
        "heldout_json": accuracy(held, answerer.marks(held)),
        "sampled_as_generation_config": accuracy(sampled, answerer.marks(sampled, sample=True)),
        "free_text": text_figures(model, tokenizer, chapters),
        "mtp_agreement_with_main_argmax": mtp_figures(weights, encoder, chapters, arguments.seed),
    }
    write_json(arguments.model / "metrics.json", metrics)
    write_json(arguments.model / "heldout.json", heldout_json(held))


if __name__ == "__main__":
    main()
