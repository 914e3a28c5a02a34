"""`racer feedback`: one judgement from arguments, many from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.command_results import failed, parsed
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, TWO, Command, Gateway


def verdicts(gateway: Gateway, decision_id: str) -> dict[str, bool]:
    """The stored verdicts on a decision."""
    found = gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).json()
    return found["feedback"]["correct"]


def judgements(path: Path, *lines: object) -> Path:
    """A file of judgements."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_key_is_the_admins_else_the_clients(
    racer: Command, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment: a client has the data key alone, whose verdicts wait."""

    def waiting() -> int:
        decision_id = gateway.route(TWO)["decision_id"]
        given = ("feedback", decision_id, "adder=right", "--url", gateway.url, "--json")
        return parsed(racer(*given))["waiting"]

    monkeypatch.delenv("RACER_ADMIN_KEY", raising=False)
    monkeypatch.setenv("RACER_DATA_KEY", DATA_KEY)
    assert waiting() == 1
    monkeypatch.setenv("RACER_ADMIN_KEY", ADMIN_KEY)
    assert waiting() == 0


def test_one_judgement(racer: Command, gateway: Gateway) -> None:
    """Of some candidates of a decision; again it changes nothing, and the contrary is refused."""
    decision_id = gateway.route(TWO)["decision_id"]
    at = ["--url", gateway.url, "--key", ADMIN_KEY]
    given = ["feedback", decision_id, "adder=right", "poet=wrong", *at]
    assert parsed(racer(*given, "--json")) == {"sent": 1, "known_already": 0, "waiting": 0}
    assert verdicts(gateway, decision_id) == {"adder": True, "poet": False}
    assert parsed(racer(*given, "--json"))["known_already"] == 1
    failed(racer("feedback", decision_id, "adder=wrong", *at), 1, "409")
    code, _, stderr = racer("feedback", decision_id, "speller=true", *at[:3], DATA_KEY)
    assert code == 0
    assert "wait until an admin accepts them" in stderr


def test_a_file_of_judgements(racer: Command, gateway: Gateway, tmp_path: Path) -> None:
    """What is refused is named by its line, and all others are sent."""
    first, second = (gateway.route(TWO)["decision_id"] for _ in range(2))
    at = ["--url", gateway.url, "--key", ADMIN_KEY]
    path = judgements(
        tmp_path / "judgements.jsonl",
        {"decision_id": first, "correct": {"adder": True}},
        {"decision_id": "chatcmpl-unknown", "correct": {"adder": True}},
        {"decision_id": second, "correct": {"adder": False, "poet": False}},
    )
    code, out, stderr = racer("feedback", "--file", path, *at, "--json")
    assert (code, json.loads(out)["sent"]) == (1, 2)
    assert "1 of 3 refused: line 2: " in " ".join(stderr.split())
    assert verdicts(gateway, first) == {"adder": True}
    assert verdicts(gateway, second) == {"adder": False, "poet": False}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"decision_id": "x"}, "`decision_id`, a text, and `correct`"),
        ({"decision_id": 1, "correct": {"a": True}}, "`decision_id`, a text"),
        ({"decision_id": "x", "correct": {}}, "must map candidates"),
        ({"decision_id": "x", "correct": {"a": 1}}, "`correct.a` must be true or false"),
        ({"decision_id": "x", "correct": {"a": True}, "judge": "j"}, "nothing else"),
        ("text", "line 1"),
    ],
)
def test_nothing_is_sent_of_a_file_with_a_wrong_line(
    racer: Command, tmp_path: Path, line: object, words: str
) -> None:
    """It is read before the gateway is called: the address is nobody's."""
    path = judgements(tmp_path / "judgements.jsonl", line)
    failed(racer("feedback", "--file", path, "--url", "http://127.0.0.1:1"), 1, "line 1", words)


@pytest.mark.parametrize(
    "given",
    [[], ["x"], ["x", "adder"], ["x", "adder=perhaps"], ["x", "a=right", "--file", "f"]],
    ids=" ".join,
)
def test_half_a_judgement_is_wrong_usage(racer: Command, given: list[str]) -> None:
    """One way or the other, whole."""
    failed(racer("feedback", *given), 2, "racer feedback --help")
