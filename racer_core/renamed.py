"""Names of the version before: they keep working for one version, with a warning.

Knows no other module of the package.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` that finds renamed classes.

    Args:
        module: The module's ``__name__``.
        names: Old name to new name; a new name in another module has its dotted path.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(".")
        place = place or module
        warnings.warn(
            f"{module}.{name} is {place}.{new} now; the old name goes with the next version",
            FutureWarning,
            stacklevel=2,
        )
        return getattr(import_module(place), new)

    return find
