"""Calls to candidates and evaluators: replicas, circuits, retries and deadlines.

``calls`` makes one HTTP call to one server, ``failures`` names what can go wrong with it,
``circuit`` and ``replicas`` choose the server, ``retries`` decides about another call, and
``fleet`` puts them together.
"""
