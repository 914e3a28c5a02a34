"""Calls to candidates and evaluators over HTTP; knows no routing, no voting and no store.

``fleet`` puts the parts together: a call, its attempts, and the health checks that let servers back
in. ``http_client`` makes one HTTP call to one server (deadlines, size limits) on a connection of
``connection_pool``; ``connection`` is the HTTP/1.1 protocol. ``replicas``, ``circuit_breaker`` and
``affinity`` choose the server; ``retries`` translates failures and decides about another call.
``reply`` and ``stream`` read answers; ``model_list`` asks a server for its models.
"""
