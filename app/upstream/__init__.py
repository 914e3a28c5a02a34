"""Calls to candidates and evaluators over HTTP; knows no routing, no voting and no store.

``http_client`` makes one HTTP call to one server (connection pool, deadlines, size limits), and
``failures`` translates what goes wrong. ``circuit_breaker`` and ``replicas`` choose the server,
``health_checks`` lets servers back in, ``retries`` decides about another call, and ``fleet`` puts
these together.
"""
