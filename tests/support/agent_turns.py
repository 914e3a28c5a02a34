"""Turns of a coding agent, with and without what its harness wraps around the words of its user.

Generated: the words are the queries that the tests' router knows, and the wrapping holds lines that
look like other queries, so that a router that reads it chooses other sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.gateway import SKILLS

SEED = 20260401
COUNT = 200
# Rules of an application for this harness, as its configuration has them.
LEAVE_OUT = [
    {"begin": "<system-reminder>", "end": "</system-reminder>"},
    {"begin": "<ide_opened_file>", "end": "</ide_opened_file>"},
    {"begin": "<environment_details>", "end": "</environment_details>"},
    {"begin": "Files of the project:\n", "end": "\n(end of files)"},
    {"begin": "[Result of `"},
]


@dataclass(frozen=True)
class AgentTurn:
    """One request of an agent, as a Messages request.

    Attributes:
        bare: The conversation without the harness' wrapping.
        wrapped: The same as the harness sends it.
    """

    bare: list[dict[str, Any]]
    wrapped: list[dict[str, Any]]


def agent_turns(count: int = COUNT, seed: int = SEED) -> list[AgentTurn]:
    """Turns of a task: its first words, later words, or a step between the calls of tools."""
    rng = Random(seed)
    return [_turn(rng) for _ in range(count)]


def _turn(rng: Random) -> AgentTurn:
    words = _words(rng)
    bare: list[dict[str, Any]] = [{"role": "user", "content": words}]
    wrapped: list[dict[str, Any]] = [{"role": "user", "content": _wrapped(rng, words)}]
    if rng.random() < 0.3:  # after earlier words
        earlier = [
            {"role": "user", "content": _wrapped(rng, _words(rng))},
            {"role": "assistant", "content": "Done."},
        ]
        bare, wrapped = [*earlier, *bare], [*earlier, *wrapped]
    if rng.random() < 0.4:  # a step with the results of tools, and a reminder behind them
        calls, results = _step(rng)
        reminder = [_block(_reminder(rng))] if rng.random() < 0.5 else []
        bare += [calls, {"role": "user", "content": results}]
        wrapped += [calls, {"role": "user", "content": [*results, *reminder]}]
    return AgentTurn(bare, wrapped)


def _words(rng: Random) -> str:
    number = rng.randrange(1_000, 9_000)
    words = rng.choice([*SKILLS]).format(number, number + 1)
    if rng.random() < 0.05:  # words about the harness itself
        words += " (What does <system-reminder> mean?)"
    return words


def _wrapped(rng: Random, words: str) -> list[dict[str, Any]]:
    """Blocks around the words, or words in the midst of one text."""
    before = [make(rng) for make in (_reminder, _opened_file, _listing) if rng.random() < 0.5]
    after = [make(rng) for make in (_reminder, _environment) if rng.random() < 0.4]
    if not before and not after:
        before = [_reminder(rng)]
    if rng.random() < 0.15:
        after.append(_result(rng))
    if rng.random() < 0.3:
        return [_block("\n\n".join([*before, words, *after]))]
    return [*map(_block, [*before, words, *after])]


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _lines(rng: Random, most: int) -> str:
    """Lines of files and notes, many of which look like queries."""
    return "\n".join(_words_of_files(rng) for _ in range(rng.randrange(1, most)))


def _words_of_files(rng: Random) -> str:
    number = rng.randrange(1_000, 9_000)
    query = rng.choice([*SKILLS]).format(number, number + 1)
    return rng.choice([f"- {query}", f"# {query}", f"src/module_{number}.py", f"todo: {query}"])


def _reminder(rng: Random) -> str:
    return f"<system-reminder>\nThe user's notes:\n{_lines(rng, 20)}\n</system-reminder>"


def _opened_file(rng: Random) -> str:
    return f"<ide_opened_file>The user opened a file:\n{_lines(rng, 6)}</ide_opened_file>"


def _listing(rng: Random) -> str:
    return f"Files of the project:\n{_lines(rng, 30)}\n(end of files)"


def _environment(rng: Random) -> str:
    return f"<environment_details>\n# Visible files\n{_lines(rng, 12)}\n</environment_details>"


def _result(rng: Random) -> str:
    return f"[Result of `cat notes`]\n{_lines(rng, 12)}"


def _step(rng: Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parallel calls of tools, and their results."""
    ids = [f"toolu_{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 4))]
    calls = [
        {"type": "tool_use", "id": each, "name": "read", "input": {"path": "notes"}} for each in ids
    ]
    results = [
        {"type": "tool_result", "tool_use_id": each, "content": _lines(rng, 12)} for each in ids
    ]
    return {"role": "assistant", "content": calls}, results
