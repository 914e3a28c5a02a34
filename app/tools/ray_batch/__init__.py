"""Ray Data batch jobs, labelling and embedding; knows no Ray Serve and no HTTP server."""

from importlib.util import find_spec

from app.errors import SettingsError
from racer_core.errors import install_hint

if find_spec("ray") is None:
    raise SettingsError(f"Ray is not installed: {install_hint('ray')}")
