"""Requests of coding agents: generated turns, and what Claude Code sends around them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.kit.gateway import ONE, SKILLS

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


CACHED: Final = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
NAMES: Final = (
    "Task", "Bash", "Glob", "Grep", "LS", "Read", "Edit", "MultiEdit", "Write", "NotebookRead",
    "NotebookEdit", "WebFetch", "TodoRead", "TodoWrite", "WebSearch", "BashOutput", "KillShell",
    "ExitPlanMode", "SlashCommand", "Skill",
)  # fmt: skip
HEADERS: Final = {
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.0.1 (external, cli)",
}
REMINDER: Final = "<system-reminder>\nAs you answer, use the following context.\n</system-reminder>"


def harness_request(*, rules: int = 700, max_tokens: int = 32_000) -> dict[str, Any]:
    """A later step of a task, as the harness sends it: prompt, tools, calls and their results.

    Args:
        rules: Lines of the system prompt, 22 characters each: models with a small window take few.
        max_tokens: Of the answer.
    """
    schema = {
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": "An absolute path.",
                "enum": ["/a/1", "/a/2", "/a/3"],
            }
        },
        "required": ["path"],
        "additionalProperties": False,
        "$schema": "http://json-schema.org/draft-07/schema#",
    }
    return {
        "model": "auto",
        "max_tokens": max_tokens,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0.1; cch=5f1a2;"},
            {"type": "text", "text": "You are a coding agent.", **CACHED},
            {"type": "text", "text": "# Rules\n" + "Be careful with files.\n" * rules, **CACHED},
        ],
        "tools": [
            {"name": name, "description": f"{name}. " * 40, "input_schema": schema}
            for name in NAMES
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": REMINDER},
                    {"type": "text", "text": ONE, **CACHED},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": "EqQBCg=="},
                    {"type": "text", "text": "I look at both files."},
                    *[
                        {
                            "type": "tool_use",
                            "id": f"toolu_{n}",
                            "name": "Read",
                            "input": {"path": f"/a/{n}"},
                        }
                        for n in (1, 2)
                    ],
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "1\tx = 3"}],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": "<tool_use_error>File does not exist.</tool_use_error>",
                        "is_error": True,
                        **CACHED,
                    },
                    {"type": "text", "text": REMINDER},
                ],
            },
        ],
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "metadata": {"user_id": "user_1_account__session_2"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stream": True,
    }
