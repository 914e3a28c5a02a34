"""Calls to candidates and evaluators over HTTP; knows no routing, no voting and no store.

``http_client`` makes one HTTP call to one server (deadlines, size limits) on a connection of
``connection_pool``; ``connection`` is the HTTP/1.1 protocol, and ``failures`` translates what goes
wrong. ``circuit_breaker`` and ``replicas`` choose the server,
``health_checks`` lets servers back in, ``retries`` decides about another call, ``call`` is what one
call knows of itself, and ``fleet`` puts these together.
"""
