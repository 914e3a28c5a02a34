"""How long is looked: a hundred examples of everything, or with the profile `fuzz` 100,000."""

from hypothesis import HealthCheck, settings

from tests.app.conftest import _pool as _pool
from tests.app.conftest import artifact as artifact

settings.register_profile(
    "fuzz", deadline=None, max_examples=100_000, suppress_health_check=[HealthCheck.too_slow]
)
