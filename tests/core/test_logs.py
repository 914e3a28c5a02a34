"""Training report: files that a training writes for readers."""

import json
import sys
from types import ModuleType

import pytest

from racer_core.errors import ArtifactError
from racer_core.offline.train import write_log


class Figure:
    """Stands in for matplotlib, which is an optional extra: remembers what was drawn."""

    def __init__(self, **_):
        self.drawn = []

    def subplots(self):
        """Its own axes."""
        return self

    def plot(self, x, y, **_):
        """Remember the points."""
        self.drawn = list(zip(x, y, strict=True))

    def set_xlabel(self, _):
        """A word."""

    set_ylabel = set_xlabel

    def savefig(self, path, **_):
        """Write the points instead of an image."""
        path.write_text(json.dumps(self.drawn))


def test_log_holds_every_loss_and_what_was_chosen(tmp_path):
    """Plain JSON."""
    write_log(tmp_path, [0.5, 0.25], {"router": "mlp", "seed": 3, "hidden": 8})
    assert json.loads((tmp_path / "training.json").read_text()) == {
        "router": "mlp", "seed": 3, "hidden": 8, "losses": [0.5, 0.25], "steps": 2
    }  # fmt: skip


def test_curve_is_drawn_where_matplotlib_is(tmp_path, monkeypatch):
    """Steps count from 1; pyplot, which may want a display, is not touched."""
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    figures = ModuleType("matplotlib.figure")
    figures.Figure = Figure
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figures)
    write_log(tmp_path, [0.5, 0.25], {})
    assert json.loads((tmp_path / "loss.png").read_text()) == [[1, 0.5], [2, 0.25]]


def test_real_matplotlib_draws_an_image(tmp_path):
    """Where the extra is installed."""
    pytest.importorskip("matplotlib")
    write_log(tmp_path, [0.5, 0.25], {})
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_no_curve_without_matplotlib(tmp_path, monkeypatch):
    """Nor an error."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_log(tmp_path, [0.5], {})
    assert [path.name for path in tmp_path.iterdir()] == ["training.json"]


def test_log_that_cannot_be_written_is_an_artifact_error(tmp_path):
    """The folder is not there."""
    with pytest.raises(ArtifactError, match="cannot be written"):
        write_log(tmp_path / "gone", [0.5], {})
