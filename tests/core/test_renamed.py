"""Names of the version before still work, and say what they are called now."""

from __future__ import annotations

import importlib

import pytest

RENAMED = {
    "racer_core.calibration.monitoring.Monitor": "racer_core.calibration.monitoring.EProcess",
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
    "racer_core.offline.evaluate.Choice": "racer_core.offline.evaluate.BestSetting",
}


def found(path: str) -> object:
    """Return what a dotted path leads to."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_works_and_warns(old: str, new: str) -> None:
    """Red when the alias is gone, leads elsewhere, or says nothing."""
    with pytest.warns(FutureWarning, match=f"is {new} now"):
        assert found(old) is found(new)


def test_other_names_are_missing() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        found("racer_core.calibration.monitoring.Nothing")
