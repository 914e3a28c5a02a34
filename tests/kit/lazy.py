"""Lazy imports: every worker collects all tests, and few of them need torch, ray or scipy."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its names is read first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest and inspect look for theirs in every global
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
