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

# Files that take longest run first, so that no worker is left alone with one at the end. A folder
# stands for all of its files.
LONG = (
    "faults",
    "fuzz",
    "core/test_groups.py",
    "core/test_report.py",
    "core/test_cover_laws.py",
    "core/test_monitoring.py",
    "core/test_oracles.py",
    "core/test_evaluate.py",
    "core/test_offline.py",
    "app/test_jobs.py",
    "app/test_label.py",
    "app/test_quota_leases.py",
    "app/test_options.py",
    "app/test_uploads.py",
    "app/test_encoder_worker.py",
    "deploy",
    "demo",
    "benchmarks",
    "core",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by expected duration; the order is the same in every process of a run."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(here)
        places = [at for at, long in enumerate(LONG) if path.is_relative_to(long)]
        return min(places, default=len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``--numprocesses auto`` starts two workers per core, at least 4 and at most 16.

    The suite waits for more than half of its time. ``--numprocesses logical`` starts one per core.
    """
    if config.option.numprocesses != "auto":
        return None
    return min(max(4, 2 * (os.cpu_count() or 1)), 16)
