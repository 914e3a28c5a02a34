"""Calls to candidates and evaluators: replicas, circuits, retries and deadlines.

``http_client`` makes one HTTP call to one server, ``failures`` names what can go wrong with it,
``circuit_breaker`` and ``replicas`` choose the server, ``retries`` decides about another call,
and ``fleet`` puts them together.
"""
