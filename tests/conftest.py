"""What every test relies on: no network, no deadline, the same examples everywhere."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

# No deadline: machines are shared. Derandomised: a red run is red for everyone;
# `pytest --hypothesis-profile=search` looks for new examples.
settings.register_profile(
    "racer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile("racer")

# Folders whose files take long: what begins last should be short.
LONG = ("deploy", "demo", "faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in every process of a run; within a folder it stays as it is."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in LONG)
