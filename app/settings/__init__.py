"""Configuration: one YAML file, validated at start; knows no module of ``app`` but ``errors``.

``model`` is the whole file; the other models are its sections. ``loading`` reads the file and is
the only module that reads the environment. The file names secrets; the environment holds them.
"""

from app.settings.aggregation import Aggregation, EvaluatorModel, rater_name
from app.settings.applications import DEFAULT, Application, Checker
from app.settings.candidates import Candidate, Capabilities, FleetSettings
from app.settings.limits import Limits
from app.settings.loading import load, parse, read
from app.settings.model import AUTO, GroupBy, Settings
from app.settings.routing import SET, WHOLE_POOL
from app.settings.same_answer import ANSWERABLE, VOTE, Evidence, SameAnswer
from app.settings.secrets import Secrets

__all__ = [
    "ANSWERABLE",
    "AUTO",
    "DEFAULT",
    "SET",
    "VOTE",
    "WHOLE_POOL",
    "Aggregation",
    "Application",
    "Candidate",
    "Capabilities",
    "Checker",
    "EvaluatorModel",
    "Evidence",
    "FleetSettings",
    "GroupBy",
    "Limits",
    "SameAnswer",
    "Secrets",
    "Settings",
    "load",
    "parse",
    "rater_name",
    "read",
]
