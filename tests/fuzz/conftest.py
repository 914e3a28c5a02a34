"""Hypothesis profiles of the fuzz tests: 100 examples, or 100,000 with the profile `fuzz`."""

from hypothesis import HealthCheck, settings

# Not derandomised, or every run would look at the same examples once more.
settings.register_profile(
    "fuzz",
    deadline=None,
    derandomize=False,
    max_examples=100_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
