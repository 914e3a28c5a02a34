"""What every test relies on: no network, no deadline, the same examples everywhere."""

import os

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

# No deadline: machines are shared. Derandomised: a red run is red for everyone;
# `pytest --hypothesis-profile=search` looks for new examples.
settings.register_profile(
    "racer", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile("racer")
