"""RACER's method without HTTP: calibrated sets of language models for a query.

Synchronous; reads files only to load them; never touches the network. Start at
:mod:`racer_core.racer`. Importing this package loads nothing heavy.
"""

__version__ = "0.1.0"
