"""Requests as the harness of a coding agent sends them: Claude Code's way of asking."""

from __future__ import annotations

from typing import Any, Final

from tests.support.gateway import ONE

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
