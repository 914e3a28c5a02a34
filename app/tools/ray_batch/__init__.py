"""Ray Data batch jobs, labelling and embedding; knows no Ray Serve and no HTTP server."""

from importlib.util import find_spec

from app.errors import SettingsError

if find_spec("ray") is None:
    raise SettingsError("Ray is not installed: pip install 'racer-gateway[ray]'")
