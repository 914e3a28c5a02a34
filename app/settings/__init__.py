"""The configuration: one YAML file, checked in full at start.

``model`` is the whole, the other modules its sections, ``loading`` reads the file and, alone in the
project, the environment. Secrets are named in the file and stand in the environment.
"""

from app.settings.aggregation import Aggregation, EvaluatorModel, rater_name
from app.settings.candidates import Candidate, Capabilities, FleetSettings
from app.settings.limits import Limits
from app.settings.loading import load, parse
from app.settings.model import AUTO, Settings
from app.settings.secrets import Secrets

__all__ = [
    "AUTO",
    "Aggregation",
    "Candidate",
    "Capabilities",
    "EvaluatorModel",
    "FleetSettings",
    "Limits",
    "Secrets",
    "Settings",
    "load",
    "parse",
    "rater_name",
]
