"""RACER's method, calibrated prediction sets of language models; knows no HTTP and no ``app``.

Synchronous; reads files only to load them; never touches the network. Start at
:mod:`racer_core.racer`. Importing this package loads no heavy library.
"""

__version__ = "0.1.0"
