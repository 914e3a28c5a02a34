"""Deprecated names: those of the previous version work and warn with the new name."""

from __future__ import annotations

import importlib

import pytest

RENAMED = {
    "racer_core.calibration.monitoring.Monitor": "racer_core.calibration.wager.EProcess",
    "racer_core.calibration.monitoring.EProcess": "racer_core.calibration.wager.EProcess",
    "racer_core.calibration.monitoring.smoothed_p_value": (
        "racer_core.calibration.martingales.smoothed_p_value"
    ),
    "racer_core.calibration.calibration.choose_null_threshold": (
        "racer_core.calibration.null_threshold.choose_null_threshold"
    ),
    "racer_core.calibration.monitoring.Watch": "racer_core.calibration.monitoring.DriftState",
    "racer_core.calibration.scoring.Scoring": "racer_core.calibration.scoring.NonconformityScorer",
    "racer_core.routers.neighbours.Scan": "racer_core.routers.neighbours.ExactSearch",
    "racer_core.routers.neighbours.Lists": "racer_core.routers.inverted_file.InvertedFile",
    "racer_core.records.formats.Table": "racer_core.records.formats.TabularFile",
    "racer_core.offline.table.Table": "racer_core.offline.table.EvaluationTable",
    "racer_core.encoder.base.Encoded": "racer_core.encoder.base.EncoderOutput",
    "racer_core.offline.fit.Fitted": "racer_core.offline.fit.TrainingResult",
    "racer_core.offline.protocol.Calibrated": "racer_core.offline.protocol.CalibrationScope",
    "racer_core.offline.router_dc.FineTuned": "racer_core.offline.router_dc.FineTuningResult",
    "racer_core.offline.stacking.Embedded": "racer_core.offline.stacking.PrecomputedEncoder",
    "racer_core.racer.Scored": "racer_core.racer.RouterScores",
    "racer_core.racer.Trained": "racer_core.racer.TrainedRouter",
    "racer_core.records.convert.Converted": "racer_core.records.convert.ConversionResult",
    "racer_core.routers.checkpoint.Reached": "racer_core.routers.checkpoint.TrainingState",
    "racer_core.offline.evaluate.Choice": "racer_core.offline.evaluation_result.BestSetting",
}


def found(path: str) -> object:
    """Return what a dotted path leads to."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_works_and_warns(old: str, new: str) -> None:
    """Fails when the alias is missing, leads elsewhere, or gives no warning."""
    with pytest.warns(FutureWarning, match=f"is {new} now"):
        assert found(old) is found(new)


MOVED = {
    "racer_core.calibration.calibration": ("CalibrationOptions", "Levels", "Sets"),
    "racer_core.calibration.monitoring": (
        "ExchangeabilityMartingale",
        "ProjectionMartingale",
        "RiskEProcess",
        "UpwardMartingale",
    ),
    "racer_core.offline.evaluate": ("BestSetting", "Evaluation", "Setting"),
}


@pytest.mark.parametrize("path", [f"{at}.{name}" for at, names in MOVED.items() for name in names])
def test_a_moved_class_is_importable_where_it_was(path: str) -> None:
    """The module where it was imports it itself, so there is no warning."""
    assert isinstance(found(path), type)


def test_other_names_are_missing() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        found("racer_core.calibration.monitoring.Nothing")
