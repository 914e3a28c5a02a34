"""The gateway on Ray Serve; knows no endpoint and no candidate.

Only this package imports ray.
"""

from importlib.util import find_spec

from app.errors import SettingsError

if find_spec("ray") is None:
    raise SettingsError("Ray is not installed: pip install 'racer-gateway[ray]'")
