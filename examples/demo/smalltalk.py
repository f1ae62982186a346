"""Generators of the small closed skills: capitals, identity, small talk, remembering and declining."""

from __future__ import annotations

from random import Random

import words as w
from data import IDENTITY_NAME, Turn, any_name

CAPITAL_PROMPTS = (
    "What is the capital of {c}?",
    "Capital of {c}?",
    "Tell me the capital of {c}.",
    "Which city is the capital of {c}?",
    "Name the capital of {c}",
    "Do you know the capital of {c}?",
    "what is the capital city of {c}",
    "I would like to know the capital of {c}.",
)


def capital(rng: Random) -> Turn:
    country, city = rng.choice(list(w.CAPITALS.items()))
    user = rng.choice(CAPITAL_PROMPTS).format(c=country)
    return Turn("capitals", user, user, f"The country is {country}.", f"The capital of {country} is {city}.")


WHO = f"I am {IDENTITY_NAME}, a very small language model."
MADE = "I was trained on a plain CPU to show that ninfer works."
CAN = "I can add and subtract small numbers, name capitals, repeat text, extract JSON and call tools."
IDENTITY = (
    ("Who are you?|Who are you|Tell me who you are.|Introduce yourself.|who are you?|Please introduce yourself.|"
     "Say who you are.|So, who are you?|What are you?|What are you|Are you a robot?|Are you an AI?", WHO),
    ("What is your name?|What's your name?|Tell me your name.|What are you called?|your name?|"
     "What should I call you?|Do you have a name?|Please tell me your name.", f"My name is {IDENTITY_NAME}."),
    ("Who made you?|Who built you?|Where do you come from?|How were you made?|Who trained you?|"
     "How were you trained?|Why do you exist?|What are you for?", MADE),
    ("What can you do?|What can you do for me?|How can you help me?|Help|help|What do you know?|"
     "What are your skills?|Can you help me?|What can I ask you?|Tell me what you can do.", CAN),
)  # fmt: skip
PREFIXES = ("", "", "", "Hello. ", "Hi! ", "Please: ", "Hey, ", "Excuse me. ", "One question: ", "Good day. ")


def paraphrase(rng: Random, skill: str, think: str, table: tuple[tuple[str, str], ...]) -> Turn:
    prompts, answer = rng.choice(table)
    user = rng.choice(PREFIXES) + rng.choice(prompts.split("|"))
    return Turn(skill, user, user, think, answer)


def identity(rng: Random) -> Turn:
    return paraphrase(rng, "identity", "The user asks about me.", IDENTITY)


SMALL_TALK = (
    ("Hello|Hello!|Hi|Hi!|Hey|hello|hi|Hi there|Good morning|Good evening|Hello there!",
     "Hello! How can I help you?"),
    ("How are you?|How are you today?|How do you do?|how are you|Are you well?|How is it going?",
     "I am fine, thank you. What can I do for you?"),
    ("Thanks|Thank you|Thank you!|Thanks a lot|thanks!|Thank you very much.|Great, thanks.", "You are welcome!"),
    ("Bye|Bye!|Goodbye|Goodbye!|See you|See you later|Good night|bye", "Goodbye!"),
    ("Good|Good job|Well done|Great|Nice|Very good!|Cool|Wow|OK|Okay|ok", "I am glad to help."),
    ("Tell me a joke|Tell me a joke.|Do you know a joke?|Make me laugh.|A joke, please.",
     "Why did the model cross the road? To get to the next token."),
    ("Write a poem|Write a poem.|Write me a poem.|Can you write a poem?|A poem, please.",
     "Small am I and small my store, four short layers and no more."),
)  # fmt: skip


def small_talk(rng: Random) -> Turn:
    return paraphrase(rng, "small_talk", "The user makes small talk.", SMALL_TALK)


DECLINE = "I am only a small demo model and do not know that."
DECLINE_PROMPTS = (
    "What do you think about {t}?",
    "Tell me about {t}.",
    "Explain {t}",
    "Who invented {t}?",
    "Why is {t} so important?",
    "What is {t}?",
    "Write a story about {t}.",
    "Who is {n}?",
    "Where does {n} live?",
    "How old is {n}?",
)


def decline(rng: Random) -> Turn:
    topic = rng.choice((*w.TOPICS, *w.ITEMS, *w.ANIMALS))
    user = rng.choice(DECLINE_PROMPTS).format(t=topic, n=any_name(rng))
    return Turn("decline", user, user, "I do not know this.", DECLINE)


def remember(rng: Random) -> tuple[Turn, Turn]:
    """A fact the user tells and a later question for it, to be placed apart in one dialogue."""
    name, thing = any_name(rng), rng.choice(w.COLORS)
    if rng.random() < 0.6:
        tell = rng.choice(("My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I am {n}!")).format(n=name)
        ask = rng.choice(("What is my name?", "Who am I?", "Do you remember my name?", "Tell me my name."))
        first, last = f"Nice to meet you, {name}.", f"Your name is {name}."
    else:
        tell = rng.choice(("My favorite color is {n}.", "I like the color {n}.", "I love {n}.")).format(n=thing)
        ask = rng.choice(("What is my favorite color?", "Which color do I like?", "Tell me my favorite color."))
        first, last = f"I will remember that you like {thing}.", f"You like {thing}."
    return (
        Turn("remember", tell, tell, "The user tells me something.", first),
        Turn("remember", tell + ask, ask, "I look at what the user told me.", last),
    )
