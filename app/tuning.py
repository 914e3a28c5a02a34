"""`racer tune`: what the validation rows suggest, as a change of the configuration to review."""

from __future__ import annotations

import difflib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from app.errors import SettingsError
from racer_core.offline.tune import Trial, Tuning

_EVALUATION: Final = ("weight", "evaluator", "evaluators")  # the search compares no evaluators


@dataclass(frozen=True, slots=True)
class Change:
    """The configuration before and after, as text."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """A unified diff; empty when nothing would change."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            fromfile=str(self.path),
            tofile=str(self.path),
        )
        return "".join(lines)

    def write(self) -> None:
        """Replace the file. Raises :class:`SettingsError` when it cannot be written."""
        try:
            self.path.write_text(self.after, encoding="utf-8")
        except OSError as exc:
            raise SettingsError(f"{self.path}: cannot be written ({exc.strerror})") from exc


def change(path: Path, tuning: Tuning) -> Change:
    """Put the chosen score, alpha and vote into the file; comments and order stay.

    Raises:
        SettingsError: The file cannot be read.
    """
    try:
        before = path.read_text(encoding="utf-8")
        editor, document = _parsed(_without_evaluators(before))
    except (OSError, YAMLError) as exc:
        raise SettingsError(f"{path}: cannot be read: {exc}") from exc
    _set(document, "routing", {"alpha": tuning.chosen.alpha, "score": tuning.chosen.score.value})
    _set(document, "aggregation", _vote(tuning.chosen))
    if tuning.chosen.temperature is None:
        document["aggregation"].pop("temperature", None)
    for name in _EVALUATION:
        document["aggregation"].pop(name, None)
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return Change(path, before, after.getvalue())


def _parsed(text: str) -> tuple[YAML, Any]:
    """The document, and an editor that writes it as it was indented."""
    # ruamel.yaml and not PyYAML: it keeps comments, quotes and order through a round trip.
    # Its round-trip loader builds no Python objects.
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = 4096
    editor.explicit_start = re.search(r"^---", text, re.MULTILINE) is not None
    nested = re.search(r"^\w+:[^\n]*\n(?: *#[^\n]*\n)*( +)[^\s#-]", text, re.MULTILINE)
    listed = re.search(r"^( *)- ", text, re.MULTILINE)
    offset = len(listed[1]) if listed else 0
    mapping = len(nested[1]) if nested else 2
    editor.indent(mapping=mapping, sequence=offset + 2, offset=offset)
    document: Any = editor.load(text)  # pyright: ignore[reportUnknownMemberType]
    return editor, document


def _without_evaluators(text: str) -> str:
    """The text without the block of each evaluator setting.

    ruamel.yaml hangs what follows a block, such as the next section's comment, on its last line:
    removed with the block it would be lost.
    """
    names = "|".join(_EVALUATION)
    block = rf"^( +)(?:{names}):.*(?:\n|\Z)(?:(?: *\n)*\1 +\S.*(?:\n|\Z))*"
    return re.sub(
        r"^aggregation:.*\n(?:(?:[ #].*)?\n|[ #].*\Z)*",
        lambda section: re.sub(block, "", section[0], flags=re.MULTILINE),
        text,
        flags=re.MULTILINE,
    )


def _set(document: Any, section: str, values: dict[str, Any]) -> None:
    """Change what differs; what is new comes first, where no comment of another section is."""
    if document.get(section) is None:
        document[section] = values
        return
    for name, value in values.items():
        if name not in document[section]:
            document[section].insert(0, name, value)
        elif document[section][name] != value:  # else 0.10 would become 0.1
            document[section][name] = value


def _vote(chosen: Trial) -> dict[str, Any]:
    vote: dict[str, Any] = {"method": chosen.rule.value}
    if chosen.temperature is not None:
        vote["temperature"] = chosen.temperature
    return vote


def table(tuning: Tuning) -> Table:
    """The best vote at every alpha, and the setting that was chosen."""
    shown = Table(
        title=f"{tuning.rows} validation rows; accuracies within "
        f"{tuning.slack:.3f} of the best count as equal, and the cheapest is chosen; a vote counts "
        "where it beats the majority by two paired standard errors",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("alpha", "score", "vote", "accuracy", "size", "cost", ""):
        shown.add_column(name, no_wrap=True)
    for alpha in dict.fromkeys(trial.alpha for trial in tuning.trials):
        trials = [trial for trial in tuning.trials if trial.alpha == alpha and trial.proven]
        chosen = tuning.chosen in trials
        best = tuning.chosen if chosen else max(trials, key=lambda trial: trial.accuracy)
        vote = best.rule + (f", T {best.temperature:g}" if best.temperature else "")
        values = f"{best.accuracy:.3f}", f"{best.size:.2f}", f"{best.cost:.4g}"
        shown.add_row(f"{alpha:g}", best.score, vote, *values, "chosen" if chosen else "")
    return shown
