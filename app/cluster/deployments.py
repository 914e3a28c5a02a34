"""Deprecated alias of :mod:`app.ray_serve.deployments`, for Ray Serve files of version 0.1.

A Serve file that names ``import_path: app.cluster.deployments:build`` keeps working. The next
version removes this module.
"""

import warnings

from app.ray_serve.deployments import Arguments, Gateway, Router, build

__all__ = ["Arguments", "Gateway", "Router", "build"]

warnings.warn(
    "app.cluster.deployments is deprecated and will be removed: in the Ray Serve file, write "
    "`import_path: app.ray_serve.deployments:build`",
    FutureWarning,  # Python shows it by default: it is for operators
    stacklevel=2,
)
