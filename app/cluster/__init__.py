"""Deprecated import path of the Ray Serve application; knows only :mod:`app.ray_serve`."""
