"""Stand-ins that answer as chat models do: sentences, markdown, code fences, reasoning.

Three models are right on 90, 83 and 80 % of the questions of each of four families. What a model
says depends on its name and the question alone. Each is better at some topics of a family than at
others, so that a router has something to learn. Two wrong models agree now and then.

As upstream of a test: ``FakePool(models=[...], answer=chat_models.reply)``, or `serving`, one
server for each model. As servers for people: ``python -m tests.kit.chat_models 8001 8002 8003``.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.kit.upstream import FakePool

SHARE_RIGHT: Final = {"atlas": 0.90, "birch": 0.83, "cedar": 0.80}
NAMES: Final = tuple(SHARE_RIGHT)
# How much better each model is at the four topics of a family.
_SKILLS: Final = {
    "atlas": (0.06, 0.02, -0.02, -0.06),
    "birch": (-0.10, -0.04, 0.04, 0.10),
    "cedar": (0.06, -0.12, 0.12, -0.06),
}
_COMMON_MISTAKE: Final = 0.3  # of the wrong answers; models that make it agree

_FIRST: Final = (
    *("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas"),
    *("Karla", "Luís", "Maria", "Nils", "Olga", "Peter", "Rosa", "Søren", "Tilda", "Victor"),
)
_LAST: Final = (
    *("Berg", "Castro", "Dahl", "Evans", "Fischer", "García", "Hale", "Ivanova", "Jensen"),
    *("Keller", "Lindqvist", "Moreau", "Novák", "O'Brien", "Petrov", "Quist", "Rossi", "Sato"),
)
_CITIES: Final = ("Oslo", "Lima", "Turin", "Kyoto", "Quito", "Bergen", "Porto", "Graz")
_ADJECTIVES: Final = (
    *("Silent", "Golden", "Broken", "Distant", "Hidden", "Northern", "Crimson", "Empty"),
    *("Gentle", "Frozen", "Burning", "Ancient", "Hollow", "Restless", "Paper", "Iron"),
    *("Second", "Wooden", "Narrow", "Blue"),
)
_NOUNS: Final = (
    *("Harbour", "River", "Garden", "Bridge", "Winter", "Mirror", "Orchard", "Island"),
    *("Lantern", "Valley", "Station", "Letter", "Tower", "Meadow", "Shadow", "Window"),
    *("Kingdom", "Forest", "Summer", "Road"),
)
_WORDS: Final = ("heron", "lynx", "otter", "magpie", "badger", "salmon", "beetle", "walrus", "ibex")
_LETTERS: Final = "ABCD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question with its reference."""

    query: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """What a model sees in a question: the topic, the right answer, and plausible wrong ones."""

    topic: int
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Questions of a kind.

    Attributes:
        ask: A question.
        read: The problem in a question; None: it is of another family.
        say: The sentence in which a model gives an answer, right or wrong.
    """

    ask: Callable[[random.Random], str]
    read: Callable[[str], _Problem | None]
    say: Callable[[str, str, random.Random], str]


def questions(family: str, count: int, seed: int = 0) -> list[Asked]:
    """Questions of a family, all different."""
    rng = random.Random(f"{family} {seed}")
    found: dict[str, Asked] = {}
    while len(found) < count:
        query = FAMILIES[family].ask(rng)
        problem = FAMILIES[family].read(query)
        assert problem is not None
        found[query] = Asked(query=query, reference=problem.right)
    return list(found.values())


def write(asked: Sequence[Asked], path: Path) -> Path:
    """Write them as the file of questions that `racer bootstrap` reads."""
    lines = [{"query": each.query, "reference": each.reference} for each in asked]
    text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in lines)
    path.write_text(text, encoding="utf-8")
    return path


def is_right(model: str, query: str) -> bool:
    """Whether a model knows the answer."""
    _, problem = _problem(query)
    chance = SHARE_RIGHT[model] + _SKILLS[model][problem.topic]
    return _random(model, query, "knows").random() < chance


def answer(model: str, query: str) -> str:
    """What a model says; of anything that is no question of these families, that it cannot say."""
    try:
        family, problem = _problem(query)
    except LookupError:
        return "I am not sure what you are asking. Could you give me more details?"
    rng = _random(model, query, "says")
    if is_right(model, query):
        given = problem.right
    elif _random(model, query, "errs").random() < _COMMON_MISTAKE:
        given = problem.wrong[0]
    else:
        given = rng.choice(problem.wrong[1:])
    said = family.say(query, given, rng)
    if model == "cedar" and rng.random() < 0.5:  # thinks aloud
        doubt = f"Could it be {problem.wrong[-1]}? Let me check. No."
        return f"<think>\n{doubt}\n</think>\n\n{said}"
    return said


def reply(body: dict[str, Any]) -> str:
    """The same for a request: the last turn of the user is the question."""
    asked = [turn for turn in body["messages"] if turn["role"] == "user"]
    content = asked[-1]["content"] if asked else ""
    return answer(body["model"], content if isinstance(content, str) else str(content))


@contextmanager
def serving() -> Generator[list[str]]:
    """A server for each model; yields their addresses, without `/v1`."""
    with ExitStack() as stack:
        servers = [stack.enter_context(FakePool(models=[name], answer=reply)) for name in NAMES]
        yield [each.url.removesuffix("/v1") for each in servers]


@lru_cache(2**14)
def _problem(query: str) -> tuple[_Family, _Problem]:
    for family in FAMILIES.values():
        if (problem := family.read(query)) is not None:
            return family, problem
    raise LookupError(query)


def _random(*parts: str) -> random.Random:
    return random.Random(hashlib.sha256("\0".join(parts).encode()).digest())


# Numbers: sums, products, differences and prices.

_SUMS: Final = (
    "What is {} plus {}?",
    "A hall has {} rows of {} seats. How many seats are there?",
    "A farmer had {} sheep and sold {}. How many are left?",
    "A ticket costs ${}.50. What do {} tickets cost in dollars?",
)


def _ask_number(rng: random.Random) -> str:
    topic = rng.randrange(4)
    first, second = rng.randint(12, 989), rng.randint(3, 90)
    return _SUMS[topic].format(first + 90 if topic == 2 else first, second)


def _read_number(query: str) -> _Problem | None:
    for topic, text in enumerate(_SUMS):
        pattern = re.escape(text).replace(r"\{\}", r"(\d+)")
        if found := re.fullmatch(pattern, query):
            a, b = int(found[1]), int(found[2])
            value = (a + b, a * b, a - b, (a + 0.5) * b)[topic]
            wrong = (value + 10, value - 1, value + 1, value + 2, value - 10, value + 100)
            return _Problem(
                topic=topic, right=_figure(value), wrong=tuple(_figure(each) for each in wrong)
            )
    return None


def _figure(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def _say_number(query: str, given: str, rng: random.Random) -> str:
    a, b = re.findall(r"\d+", query.replace(".50", ""))[:2]
    spelled = f"{float(given):,.2f}".removesuffix(".00") if rng.random() < 0.3 else given
    sign = next((each for word, each in _SIGNS if word in query), "+")
    first = f"{a}.50" if "$" in query else a
    shown = f"${spelled}" if "$" in query else spelled
    return rng.choices(
        (
            f"The answer is **{shown}**.",
            f"{first} {sign} {b} = {spelled}",
            f"Sure! We take {first} {sign} {b}, which gives {shown}.",
            f"Let's work it out step by step.\n\n1. We start with {first}.\n2. The second number "
            f"is {b}.\n3. {first} {sign} {b} = {spelled}\n\n**Answer: {shown}**",
            f"\\[{first} {sign} {b} = \\boxed{{{spelled}}}\\]",
            shown,
            f"**{shown}** (from {first} and {b})",  # its last number is not the answer
        ),
        (6, 4, 4, 3, 1, 1, 0.4),
    )[0]


_SIGNS: Final = (("plus", "+"), ("rows", "×"), ("sold", "-"), ("tickets", "×"))


# Letters: four options on lines of their own.

_CHOICES: Final = (
    "Which of these words comes first in the alphabet?",
    "Which of these words is the longest?",
    "Which of these words has the most vowels?",
    "Which of these words comes last in the alphabet?",
)


def _ask_letter(rng: random.Random) -> str:
    tails = [f"{rng.choice(_WORDS)}{rng.choice(_NOUNS).lower()}" for _ in _LETTERS]
    options = "\n".join(f"{letter}. {word}" for letter, word in zip(_LETTERS, tails, strict=True))
    return f"{rng.choice(_CHOICES)}\n{options}"


def _read_letter(query: str) -> _Problem | None:
    stem, *lines = query.splitlines()
    if stem not in _CHOICES:
        return None
    words = [line[3:] for line in lines]
    topic = _CHOICES.index(stem)
    ranked = sorted(range(len(words)), key=lambda place: _measure(topic, words[place]))
    if topic == 3:
        ranked.reverse()
    right, *wrong = (_LETTERS[place] for place in ranked)
    return _Problem(topic=topic, right=right, wrong=tuple(wrong))


def _measure(topic: int, word: str) -> tuple[int, str]:
    vowels = sum(letter in "aeiou" for letter in word)
    return ((0, -len(word), -vowels, 0)[topic], word)


def _say_letter(query: str, given: str, rng: random.Random) -> str:
    word = query.splitlines()[1 + _LETTERS.index(given)][3:]
    other = rng.choice([each for each in _LETTERS if each != given])
    return rng.choices(
        (
            f"The correct answer is **{given}**. A look at all options shows it.",
            f"Option {given} is right, because the other words lose the comparison.",
            f"**{given}. {word}**",
            f"Let's compare the words. {other} looks good at first, but the answer is {given}.",
            f"The answer is ({given}): {word}.",
            f"{given}) {word}",
            given,
            f"I would choose option {given} here.",
        ),
        (4, 4, 3, 2, 3, 2, 1, 2),
    )[0]


# Names: who made a work. The works are made up; each model knows the same people.

_WORKS: Final = (
    ("Who wrote the novel “{}”?", "novel", "was written by"),
    ("Who painted “{}”?", "painting", "was painted by"),
    ("Who composed the opera “{}”?", "opera", "was composed by"),
    ("Who directed the film “{}”?", "film", "was directed by"),
)


def _ask_name(rng: random.Random) -> str:
    title = f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    return rng.choice(_WORKS)[0].format(title)


def _read_name(query: str) -> _Problem | None:
    for topic, (text, *_) in enumerate(_WORKS):
        if re.fullmatch(re.escape(text).replace(r"\{\}", r".+"), query):
            rng = _random(query, "people")
            people = [
                f"{first} {last}"
                for first, last in zip(rng.sample(_FIRST, 6), rng.sample(_LAST, 6), strict=True)
            ]
            return _Problem(topic=topic, right=people[0], wrong=tuple(people[1:]))
    return None


def _say_name(query: str, given: str, rng: random.Random) -> str:
    title = query.partition("“")[2].partition("”")[0]
    _, kind, verb = next(each for each in _WORKS if re.match(re.escape(each[0][:9]), query))
    year = rng.randint(1850, 1990)
    other = next(each for each in (_read_name(query) or _NOBODY).wrong if each != given)
    return rng.choices(
        (
            f"The {kind} “{title}” {verb} **{given}**.",
            f"“{title}” {verb} {given} in {year}.",
            f"That was {given}.",
            f"{given}",
            f"Sure! The {kind} you mean is by {given}, who finished it in {year}.",
            f"{given} is the author of this {kind}, which appeared in {year} and made "
            f"{given.split()[-1]} known abroad.",
            f"It is often said to be by {other}, but it {verb} {given}.",
            f"It {verb} {given.split()[-1]}.",  # the first name is left out
        ),
        (5, 4, 3, 2, 3, 2, 0.6, 0.4),
    )[0]


_NOBODY: Final = _Problem(topic=0, right="", wrong=("",))


# JSON: facts from a sentence as an object.

_FACTS: Final = (
    "{name}, {age}, lives in {city}.",
    "In {city} we met {name}, who is {age} years old.",
    "{name} moved to {city} at the age of {age}.",
    "At {age}, {name} opened a shop in {city}.",
)
_TASK: Final = "Return a JSON object with the keys name, age and city for this sentence: "


def _ask_json(rng: random.Random) -> str:
    fact = rng.choice(_FACTS)
    name = f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
    return _TASK + fact.format(name=name, age=rng.randint(18, 80), city=rng.choice(_CITIES))


def _read_json(query: str) -> _Problem | None:
    sentence = query.removeprefix(_TASK)
    if sentence == query:
        return None
    for topic, text in enumerate(_FACTS):
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^,.\\d]+?|\\d+)", re.escape(text))
        if found := re.fullmatch(pattern, sentence):
            name, age, city = found["name"], int(found["age"]), found["city"]
            first, last = name.split(" ")
            facts: dict[str, Any] = {"name": name, "age": age, "city": city}
            wrong = (
                facts | {"name": last},
                facts | {"age": str(age)},
                facts | {"name": f"{last}, {first}"},
                facts | {"age": age + 1},
                facts | {"city": city.upper()},
            )
            return _Problem(topic=topic, right=_json(facts), wrong=tuple(map(_json, wrong)))
    return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _say_json(_: str, given: str, rng: random.Random) -> str:
    facts = json.loads(given)
    order = rng.sample(sorted(facts), len(facts))
    shuffled = {name: facts[name] for name in order}
    indented = json.dumps(shuffled, ensure_ascii=False, indent=2)
    return rng.choices(
        (
            f"```json\n{indented}\n```",
            f"Here is the JSON object:\n\n```json\n{indented}\n```\n\nLet me know what you need.",
            f"```\n{indented}\n```",
            _json(shuffled),
            f"Sure! {_json(shuffled)}",
        ),
        (4, 4, 2, 2, 1),
    )[0]


FAMILIES: Final = {
    "numbers": _Family(ask=_ask_number, read=_read_number, say=_say_number),
    "letters": _Family(ask=_ask_letter, read=_read_letter, say=_say_letter),
    "names": _Family(ask=_ask_name, read=_read_name, say=_say_name),
    "json": _Family(ask=_ask_json, read=_read_json, say=_say_json),
}


def main(ports: Sequence[str]) -> None:
    """Serve one model at each port, until Ctrl-C."""
    with ExitStack() as stack:
        for name, port in zip(NAMES, ports, strict=False):
            stack.enter_context(FakePool(models=[name], answer=reply, port=int(port)))
            sys.stdout.write(f"{name}: http://127.0.0.1:{port}/v1\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main(sys.argv[1:])
