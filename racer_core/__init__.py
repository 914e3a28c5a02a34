"""RACER's method, calibrated prediction sets of language models; knows no HTTP and no ``app``.

    import racer_core as rc

    router = rc.EmbeddingRouter().fit(X_train, correct_train)
    calibration = rc.calibrate(router.predict(X), correct, alpha=0.1)
    sets = calibration.predict(router.predict(X_new))

The names of ``__all__`` are public. Each is loaded when it is first used: importing the package
loads nothing heavy, and arrays need no torch. Synchronous; reads files only to load them; uses the
network only to download an encoder that is named and not cached; never pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from racer_core.calibration.calibration import Calibration
    from racer_core.calibration.certificate import Certificate
    from racer_core.calibration.null_threshold import choose_null_threshold
    from racer_core.calibration.options import CalibrationOptions
    from racer_core.calibration.patterns import PatternModel
    from racer_core.calibration.threshold import calibrate_threshold
    from racer_core.encoder.char_ngrams import CharNgramEncoder
    from racer_core.encoder.huggingface import HuggingFaceEncoder
    from racer_core.encoder.word_vectors import WordVectorEncoder
    from racer_core.errors import CalibrationError, InputError, OverlapError, RacerError, RowsError
    from racer_core.notebook.calibrate import calibrate
    from racer_core.notebook.evaluate import ResultTable, evaluate
    from racer_core.notebook.figures import plot_risk, plot_size
    from racer_core.notebook.router import EmbeddingRouter
    from racer_core.notebook.rows import rows_from_arrays, rows_from_frame
    from racer_core.offline.train import train
    from racer_core.racer import Racer
    from racer_core.records.lm_eval import read_lm_eval
    from racer_core.records.reader import read_routerbench, read_rows
    from racer_core.records.split import split_rows
    from racer_core.records.writer import write_rows
    from racer_core.types import (
        LabelledRow,
        LabelledRows,
        RiskTarget,
        RoutingDecision,
        RowsKind,
        Score,
    )

__version__ = "0.2.0.dev0"

# The public names by subject, and the module of each.
SUBJECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "Rows": {
        "LabelledRow": "types",
        "LabelledRows": "types",
        "RowsKind": "types",
        "read_rows": "records.reader",
        "read_lm_eval": "records.lm_eval",
        "read_routerbench": "records.reader",
        "rows_from_arrays": "notebook.rows",
        "rows_from_frame": "notebook.rows",
        "split_rows": "records.split",
        "write_rows": "records.writer",
    },
    "Routers": {
        "EmbeddingRouter": "notebook.router",
        "CharNgramEncoder": "encoder.char_ngrams",
        "WordVectorEncoder": "encoder.word_vectors",
        "HuggingFaceEncoder": "encoder.huggingface",
        "train": "offline.train",
        "Racer": "racer",
    },
    "Calibration": {
        "calibrate": "notebook.calibrate",
        "Calibration": "calibration.calibration",
        "CalibrationOptions": "calibration.options",
        "PatternModel": "calibration.patterns",
        "Score": "types",
        "RiskTarget": "types",
        "RoutingDecision": "types",
        "Certificate": "calibration.certificate",
        "calibrate_threshold": "calibration.threshold",
        "choose_null_threshold": "calibration.null_threshold",
    },
    "Evaluation": {
        "evaluate": "notebook.evaluate",
        "ResultTable": "notebook.evaluate",
        "plot_risk": "notebook.figures",
        "plot_size": "notebook.figures",
    },
    "Errors": {
        "RacerError": "errors",
        "InputError": "errors",
        "RowsError": "errors",
        "CalibrationError": "errors",
        "OverlapError": "errors",
    },
}

__all__ = [
    "Calibration",
    "CalibrationError",
    "CalibrationOptions",
    "Certificate",
    "CharNgramEncoder",
    "EmbeddingRouter",
    "HuggingFaceEncoder",
    "InputError",
    "LabelledRow",
    "LabelledRows",
    "OverlapError",
    "PatternModel",
    "Racer",
    "RacerError",
    "ResultTable",
    "RiskTarget",
    "RoutingDecision",
    "RowsError",
    "RowsKind",
    "Score",
    "WordVectorEncoder",
    "calibrate",
    "calibrate_threshold",
    "choose_null_threshold",
    "evaluate",
    "plot_risk",
    "plot_size",
    "read_lm_eval",
    "read_routerbench",
    "read_rows",
    "rows_from_arrays",
    "rows_from_frame",
    "split_rows",
    "train",
    "write_rows",
]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    for modules in SUBJECTS.values():
        if name in modules:
            value = getattr(import_module(f"{__name__}.{modules[name]}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return [*__all__, "__version__"]
