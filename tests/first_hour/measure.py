"""What the three stand-ins gain: the quickstart on 400 questions of a family, then 1,000 new ones.

``python -m tests.first_hour.measure`` prints the table of docs/quickstart.md.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.first_hour.ordinary import ORDINARY, SYSTEM, request
from tests.kit import chat_models
from tests.kit.first_gateway_page import Walked, walked

LABELLED: Final = 400
HELD_OUT: Final = 1_000
# The configured one, a smaller one, and one that calls the whole pool: too few rows for it.
LEVELS: Final = (0.1, 0.02, 0.001)
_THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question that the gateway answered.

    Attributes:
        query: The question.
        winner: The candidate whose text was returned; None: it was refused.
        selected: The candidates that were called.
        reasons: Why the certificate does not hold; empty: it does.
    """

    query: str
    winner: str | None
    selected: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether the answer is right; a refusal is not."""
        return self.winner is not None and chat_models.is_right(self.winner, self.query)

    @property
    def is_answerable(self) -> bool:
        """Whether some candidate knows the answer."""
        return any(chat_models.is_right(name, self.query) for name in chat_models.NAMES)

    @property
    def misses(self) -> bool:
        """Whether no called candidate is right, although some candidate is."""
        called = any(chat_models.is_right(name, self.query) for name in self.selected)
        return self.is_answerable and not called


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one family.

    Attributes:
        family: Its name.
        answered: The same questions at each level.
        seconds: By command, how long it took.
        closing: What the second terminal printed.
        ordinary: Why the certificates of five ordinary requests do not hold; empty: they do.
        cured: The same after the command that `racer doctor` prints.
    """

    family: str
    answered: Mapping[float, Sequence[Answered]]
    seconds: Mapping[str, float]
    closing: str
    ordinary: Mapping[str, tuple[str, ...]]
    cured: Mapping[str, tuple[str, ...]]

    @property
    def row(self) -> str:
        """One line of the table."""
        own = self.answered[LEVELS[0]]
        alone = {
            name: [chat_models.is_right(name, each.query) for each in own]
            for name in chat_models.NAMES
        }
        best = max(alone, key=lambda name: sum(alone[name]))
        cells = [self.family, _share(alone[best])]
        for answered in self.answered.values():
            calls = sum(len(each.selected) for each in answered) / len(answered)
            right = [each.is_right for each in answered]
            gain = [one - other for one, other in zip(right, alone[best], strict=True)]
            mean = sum(gain) / len(gain)
            error = math.sqrt(sum((each - mean) ** 2 for each in gain)) / len(gain)
            cells.append(
                f"{100 * sum(right) / len(right):.1f} ({100 * mean:+.1f} ± {100 * error:.1f}), "
                f"{calls:.2f} calls"
            )
        cells.append(_share([each.misses for each in own if each.is_answerable]))
        cells.append(f"{sum(not each.reasons for each in own):,}")
        return f"| {' | '.join(cells)} |"


def _share(values: Sequence[bool]) -> str:
    """A share in percent, with its standard error."""
    share = sum(values) / len(values)
    return f"{100 * share:.1f} ± {100 * math.sqrt(share * (1 - share) / len(values)):.1f}"


def _client(reader: Walked) -> httpx2.Client:
    return httpx2.Client(
        base_url=reader.url,
        headers={"authorization": f"Bearer {reader.key}"},
        timeout=60,
        trust_env=False,
        verify=False,
    )


def ordinary(reader: Walked, question: str) -> dict[str, tuple[str, ...]]:
    """What voids the certificates of ordinary requests, by their names."""
    with _client(reader) as client:
        found: dict[str, tuple[str, ...]] = {}
        for name in ORDINARY:
            answer = client.post("/v1/chat/completions", json=request(name, question)).json()
            certificate = answer["racer"]["certificate"]
            found[name] = () if certificate["holds"] else tuple(certificate["reasons"])
        return found


def cured(reader: Walked, question: str) -> dict[str, tuple[str, ...]]:
    """The same after the command that `racer doctor` prints for these requests."""
    (reader.folder / "prompt.txt").write_text(SYSTEM)
    findings = json.loads(reader.types("racer doctor --json || true"))["findings"]
    command = next(each["cure"] for each in findings if each["check"] == "coverage")
    reader.types(f"{command}\n")
    return ordinary(reader, question)


def asked(reader: Walked, queries: Sequence[str], alpha: float) -> list[Answered]:
    """The gateway's answers at a level."""
    with _client(reader) as client:

        def ask(query: str) -> Answered:
            body = {
                "model": "auto",
                "messages": [{"role": "user", "content": query}],
                "racer": {"alpha": alpha},
            }
            answer: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()
            racer = answer["racer"]
            selected = tuple(racer["selected"])
            return Answered(
                query=query,
                winner=answer["model"] if selected else None,
                selected=selected,
                reasons=tuple(racer["certificate"]["reasons"]),
            )

        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(ask, queries))


def measure(family: str, folder: Path, labelled: int, held_out: int) -> Measured:
    """Walk through the quickstart in an empty folder, and ask new questions at its end."""
    made = chat_models.questions(family, labelled + held_out)
    chat_models.write(made[:labelled], folder / "questions.jsonl")
    with chat_models.serving() as servers, walked(folder, servers) as reader:
        new = [each.query for each in made[labelled:]]
        answered = {alpha: asked(reader, new, alpha) for alpha in LEVELS}
        void = ordinary(reader, new[0])
        return Measured(
            family=family,
            answered=answered,
            seconds=dict(reader.seconds),
            closing=reader.after,
            ordinary=void,
            cured=cured(reader, new[1]),
        )


def main() -> None:
    """Print the table, then the time of each step."""
    found: list[Measured] = []
    for family in sys.argv[1:] or chat_models.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(family, Path(folder), LABELLED, HELD_OUT))
        reasons = Counter(each.reasons for each in found[-1].answered[LEVELS[0]])
        sys.stdout.write(f"{found[-1].closing}\n{dict(reasons)}\n{found[-1].row}\n")
        sys.stdout.flush()
    sys.stdout.write("\n".join(each.row for each in found) + "\n")
    total = Counter[str]()
    for each in found:
        total.update(each.seconds)
    for name, seconds in total.items():
        sys.stdout.write(f"{seconds / len(found):6.1f} s  {name}\n")


if __name__ == "__main__":
    main()
