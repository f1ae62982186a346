"""Seeded generators of the training dialogues, one per skill, with a hash-based held-out split.

Every dialogue turn has a *key* that names what is being asked. `is_held_out(key)` puts about 6 % of all
keys aside: the training generators never emit them, the evaluation emits nothing else.
"""

from __future__ import annotations

import hashlib
import json
import string
from dataclasses import dataclass, field, replace
from random import Random

import words as w

Message = dict[str, object]
HELD_OUT_BYTE = 16
IDENTITY_NAME = "Ninfer Demo"


@dataclass(frozen=True, slots=True)
class Turn:
    """One question with its reference reply; `after_tool` continues the reply once the tool has answered."""

    skill: str
    key: str
    user: str
    think: str
    answer: str
    plain_answer: str | None = None
    tool_calls: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    tool_result: str = ""
    after_tool: str = ""
    tools: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What the chat template renders: messages (the last one an assistant's), tools and the thinking flag."""

    messages: list[Message]
    thinking: bool
    tools: list[dict[str, object]] = field(default_factory=list)


def is_held_out(key: str) -> bool:
    """Tell whether `key` belongs to the evaluation; a pure function of its text."""
    return hashlib.sha256(key.encode()).digest()[0] < HELD_OUT_BYTE


# --- arithmetic -------------------------------------------------------------------------------------------


def addition_trace(a: int, b: int) -> str:
    """Column by column: the digits' sum with the carry, then the result's digits so far."""
    width = max(len(str(a)), len(str(b)))
    left, right = f"{a:0{width}}", f"{b:0{width}}"
    lines, carry, done = [f"{left}+{right}"], 0, ""
    for i in reversed(range(width)):
        total = int(left[i]) + int(right[i]) + carry
        shown = f"{left[i]}+{right[i]}+1" if carry else f"{left[i]}+{right[i]}"
        carry = total // 10
        done = (str(total) if i == 0 else str(total % 10)) + done
        lines.append(f"{shown}={total}, {done}")
    return "\n".join(lines)


def subtraction_trace(a: int, b: int) -> str:
    """Column by column with borrows, for a >= b; leading zeros stay in the trace."""
    width = len(str(a))
    left, right = f"{a:0{width}}", f"{b:0{width}}"
    lines, borrow, done = [f"{left}-{right}"], 0, ""
    for i in reversed(range(width)):
        digit = int(left[i]) - int(right[i]) - borrow
        top = left[i] if digit >= 0 else f"1{left[i]}"
        shown = f"{top}-{right[i]}-1" if borrow else f"{top}-{right[i]}"
        borrow, digit = int(digit < 0), digit % 10
        done = str(digit) + done
        lines.append(f"{shown}={digit}, {done}")
    return "\n".join(lines)


ARITHMETIC_PROMPTS = (
    "What is {p}?",
    "What is {p}?",
    "{p}",
    "{p} =",
    "Compute {p}.",
    "Calculate {p}",
    "How much is {p}?",
    "Please compute {p}",
)
SYMBOL_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def arithmetic(rng: Random) -> Turn:
    op = rng.choices("+-*", (50, 42, 8))[0]
    if op == "*":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        value, trace = a * b, f"{a}*{b}={a * b}"
    else:
        digits = rng.choices((1, 2, 3), (15, 30, 55), k=2)
        a, b = (rng.randint(0 if d == 1 else 10 ** (d - 1), 10**d - 1) for d in digits)
        a, b = (max(a, b), min(a, b)) if op == "-" else (a, b)
        value, trace = (a + b, addition_trace(a, b)) if op == "+" else (a - b, subtraction_trace(a, b))
    style = rng.random()
    shown = f"{a}{op}{b}" if style < 0.3 else f"{a} {SYMBOL_WORDS[op] if style > 0.85 else op} {b}"
    user = rng.choice(ARITHMETIC_PROMPTS).format(p=shown)
    answer = f"{a} {op} {b} = {value}"
    key = user if op == "*" or a + b < 20 else f"{a}{op}{b}"
    return Turn("arithmetic", key, user, trace, answer, plain_answer=f"{trace}\n{answer}")


# --- copying ----------------------------------------------------------------------------------------------

COPY_PROMPTS = (
    "Repeat after me: {s}",
    "Repeat after me: {s}",
    "Repeat: {s}",
    "Say {s}",
    "Echo {s}",
    "Copy this text: {s}",
    "Repeat this exactly:\n{s}",
    "Write the following again: {s}",
)
ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_letters + string.digits,
    string.ascii_lowercase,
    string.ascii_uppercase + string.digits,
    string.digits,
    "0123456789abcdef",
    string.ascii_letters + string.digits + "-_.:/#+*",
)


def name_like(rng: Random) -> str:
    """Return an invented capitalised name of two or three syllables."""
    return "".join(rng.choices(w.SYLLABLES, k=rng.randint(2, 3))).capitalize()


def sentence(rng: Random) -> str:
    subject = rng.choice(w.ANIMALS + w.NAMES)
    words = ["the", rng.choice(w.ADJECTIVES), subject, rng.choice(w.VERBS), "the", rng.choice(w.COLORS)]
    return " ".join([*words, rng.choice(w.ITEMS)])


def random_text(rng: Random, limit: int) -> str:
    """Return 1 to `limit` characters without surrounding blanks: random characters, words or syllables."""
    kind, length = rng.random(), rng.randint(1, limit)
    if kind < 0.6:
        return "".join(rng.choices(rng.choice(ALPHABETS), k=length))
    if kind < 0.7:
        text = " ".join("".join(rng.choices(ALPHABETS[0], k=rng.randint(1, 6))) for _ in range(12))
    elif kind < 0.85:
        pool = w.ITEMS + w.COLORS + w.ANIMALS + w.NAMES + w.ADJECTIVES + w.CITIES
        text = " ".join(rng.choices(pool, k=12))
    elif kind < 0.93:
        text = " ".join(name_like(rng) for _ in range(9))
    else:
        text = sentence(rng)
    return text[:length].strip()


def copy(rng: Random) -> Turn:
    text = random_text(rng, rng.choice((12, 30, 62)))
    user = rng.choice(COPY_PROMPTS).format(s=text)
    return Turn("copy", text if len(text) > 3 else user, user, "I repeat the text.", text)


# --- JSON extraction --------------------------------------------------------------------------------------


def any_name(rng: Random) -> str:
    return rng.choice(w.NAMES) if rng.random() < 0.6 else name_like(rng)


def person_facts(rng: Random) -> tuple[dict[str, object], str]:
    name, age, city = any_name(rng), rng.randint(5, 99), rng.choice([*w.CITIES, name_like(rng)])
    text = rng.choice(
        (
            f"{name} is {age} years old and lives in {city}.",
            f"{name}, {age}, comes from {city}.",
            f"My friend {name} lives in {city} and is {age} years old.",
            f"In {city} there is a person called {name} who is {age}.",
        )
    )
    return {"name": name, "age": age, "city": city}, text


def product_facts(rng: Random) -> tuple[dict[str, object], str]:
    item, color, price = rng.choice(w.ITEMS), rng.choice(w.COLORS), rng.randint(1, 999)
    text = rng.choice(
        (
            f"The {color} {item} costs {price} dollars.",
            f"We sell a {color} {item} for {price} dollars.",
            f"For {price} dollars you get a {item} in {color}.",
        )
    )
    return {"item": item, "color": color, "price": price}, text


def event_facts(rng: Random) -> tuple[dict[str, object], str]:
    event, day, place = rng.choice(w.EVENTS), rng.choice(w.DAYS), rng.choice(w.PLACES)
    text = rng.choice(
        (
            f"The {event} is on {day} at the {place}.",
            f"On {day} there is a {event} in the {place}.",
            f"Come to the {place} for the {event} this {day}.",
        )
    )
    return {"event": event, "day": day, "place": place}, text


JSON_PROMPTS = (
    "Extract {k} as JSON: {t}",
    "Extract {k} as JSON: {t}",
    "Extract the {k} as JSON: {t}",
    "Extract {k} as JSON.\n{t}",
    "Give me {k} as JSON: {t}",
)


def json_extract(rng: Random) -> Turn:
    facts, text = rng.choice((person_facts, person_facts, product_facts, event_facts))(rng)
    keys = list(facts)
    if rng.random() < 0.4:
        keys = rng.sample(keys, rng.randint(1, len(keys)))
    listed = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
    user = rng.choice(JSON_PROMPTS).format(k=listed, t=text)
    answer = json.dumps({k: facts[k] for k in keys}, ensure_ascii=False)
    return Turn("json", user, user, f"I need {listed}.", answer)


# --- tool calls -------------------------------------------------------------------------------------------


def tool(name: str, description: str, *parameters: str) -> dict[str, object]:
    """Return an OpenAI-style function declaration with string parameters, all required."""
    properties = {p: {"type": "string"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = tool("get_weather", "Get the weather of a city.", "city")
TIME = tool("get_time", "Get the time in a city.", "city")
TIMER = tool("set_timer", "Start a timer.", "minutes")
MESSAGE = tool("send_message", "Send a message.", "to", "text")
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")


def weather_call(rng: Random) -> Turn:
    city = rng.choice([*w.CITIES, *w.CAPITALS.values(), name_like(rng)])
    user = rng.choice(("What is the weather in {c}?", "How is the weather in {c}?", "Weather in {c}?")).format(c=city)
    sky, degrees = rng.choice(SKIES), rng.randint(1, 39)
    result = rng.choice((f'{{"sky": "{sky}", "degrees": {degrees}}}', f"{sky}, {degrees} degrees"))
    reply = f"In {city} it is {sky} with {degrees} degrees."
    return call_turn(user, WEATHER, {"city": city}, result, reply)


def time_call(rng: Random) -> Turn:
    city = rng.choice([*w.CITIES, *w.CAPITALS.values(), name_like(rng)])
    user = rng.choice(("What time is it in {c}?", "Tell me the time in {c}.", "Time in {c}?")).format(c=city)
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return call_turn(user, TIME, {"city": city}, clock, f"It is {clock} in {city}.")


def timer_call(rng: Random) -> Turn:
    minutes = str(rng.randint(1, 99))
    asks = ("Set a timer for {m} minutes.", "Start a timer of {m} minutes.", "Wake me in {m} minutes.")
    user = rng.choice(asks).format(m=minutes)
    return call_turn(user, TIMER, {"minutes": minutes}, "ok", f"The timer is set for {minutes} minutes.")


def message_call(rng: Random) -> Turn:
    to, text = any_name(rng), sentence(rng)
    user = rng.choice(("Send {n} the message: {t}", "Tell {n}: {t}", "Write to {n}: {t}")).format(n=to, t=text)
    return call_turn(user, MESSAGE, {"to": to, "text": text}, "sent", f"I sent the message to {to}.")


def named_call(rng: Random) -> Turn:
    """A call of an invented function, which can only be answered from the declaration and the request."""
    name = f"{rng.choice(w.TOOL_VERBS)}_{rng.choice(w.TOOL_NOUNS)}"
    keys = rng.sample(w.KEYS, rng.randint(1, 2))
    values = [rng.choice((name_like, any_name, lambda r: str(r.randint(1, 999)), lambda r: r.choice(w.ITEMS)))(rng)
              for _ in keys]  # fmt: skip
    listed = " and ".join(f"{k} {v}" for k, v in zip(keys, values, strict=True))
    user = rng.choice(("Call {f} with {a}.", "Use {f} with {a}.", "Please run {f} with {a}.")).format(f=name, a=listed)
    declaration = tool(name, f"{name.replace('_', ' ').capitalize()}.", *keys)
    return call_turn(user, declaration, dict(zip(keys, values, strict=True)), "done", "It is done.")


def call_turn(user: str, declaration: dict[str, object], arguments: dict[str, str], result: str, reply: str) -> Turn:
    function = declaration["function"]
    assert isinstance(function, dict)
    name = str(function["name"])
    call = ((name, tuple(arguments.items())),)
    return Turn("tools", user, user, f"I call {name}.", "", None, call, result, reply, (declaration,))


def tool_call(rng: Random) -> Turn:
    makers = (weather_call, time_call, timer_call, message_call, named_call)
    turn = rng.choices(makers, (25, 12, 12, 18, 33))[0](rng)
    others = rng.sample((WEATHER, TIME, TIMER, MESSAGE), rng.choices((0, 1, 2), (45, 35, 20))[0])
    tools = [t for t in others if t not in turn.tools] + list(turn.tools)
    rng.shuffle(tools)
    return replace(turn, tools=tuple(tools))
