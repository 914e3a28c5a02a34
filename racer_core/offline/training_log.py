"""Training log beside the artifact: ``training.json`` and, with matplotlib, a loss curve."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from racer_core.errors import ArtifactError


def write_log(folder: Path, losses: Sequence[float], settings: Mapping[str, Any]) -> None:
    """Write ``training.json``, and ``loss.png`` where matplotlib is installed.

    Args:
        folder: The artifact's.
        losses: One a step, or one an epoch; none of a router without such a training.
        settings: JSON values: kind of router, seed and other settings.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    log = {**settings, "steps": len(losses), "losses": list(losses)}
    try:
        text = json.dumps(log, indent=2, ensure_ascii=False) + "\n"
        (folder / "training.json").write_text(text, encoding="utf-8")
        if losses:
            _draw(folder / "loss.png", losses)
    except OSError as exc:
        raise ArtifactError(f"the log in {folder} cannot be written: {exc.strerror}") from exc


def _draw(path: Path, losses: Sequence[float]) -> None:
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:  # an optional extra
        return
    figure = figures.Figure(figsize=(6, 4), layout="constrained")  # no pyplot, hence no display
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.savefig(path, dpi=120)
