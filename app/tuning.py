"""`racer tune`: what the validation rows suggest, as a change of the configuration to review."""

from __future__ import annotations

import difflib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from app.errors import SettingsError
from racer_core.offline.tune import Trial, Tuning


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
    # ruamel.yaml and not PyYAML: it keeps comments, quotes and order through a round trip.
    # Its round-trip loader builds no Python objects.
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = 4096
    try:
        before = path.read_text(encoding="utf-8")
        if re.search(r"^ +- ", before, re.MULTILINE):  # lists stand indented below their names
            editor.indent(mapping=2, sequence=4, offset=2)
        document: Any = editor.load(before)  # pyright: ignore[reportUnknownMemberType]
    except (OSError, YAMLError) as exc:
        raise SettingsError(f"{path}: cannot be read: {exc}") from exc
    document.setdefault("routing", {}).update(
        {"alpha": tuning.chosen.alpha, "score": tuning.score.value}
    )
    aggregation = document.setdefault("aggregation", {})
    for name in ("weight", "evaluator", "evaluators"):  # the search compares no evaluators
        aggregation.pop(name, None)
    aggregation.update(_vote(tuning.chosen))
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return Change(path, before, after.getvalue())


def _vote(chosen: Trial) -> dict[str, Any]:
    vote: dict[str, Any] = {"method": chosen.rule.value}
    if chosen.temperature is not None:
        vote["temperature"] = chosen.temperature
    return vote


def table(tuning: Tuning) -> Table:
    """The best vote at every alpha, and the setting that was chosen."""
    shown = Table(
        title=f"score {tuning.score}, {tuning.rows} validation rows; accuracies within "
        f"{tuning.slack:.3f} of the best count as equal, and the cheapest is chosen",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("alpha", "vote", "accuracy", "size", "cost", ""):
        shown.add_column(name, no_wrap=True)
    for alpha in dict.fromkeys(trial.alpha for trial in tuning.trials):
        trials = [trial for trial in tuning.trials if trial.alpha == alpha]
        chosen = tuning.chosen in trials
        best = tuning.chosen if chosen else max(trials, key=lambda trial: trial.accuracy)
        vote = best.rule + (f", T {best.temperature:g}" if best.temperature else "")
        values = f"{best.accuracy:.3f}", f"{best.size:.2f}", f"{best.cost:.4g}"
        shown.add_row(f"{alpha:g}", vote, *values, "chosen" if chosen else "")
    return shown
