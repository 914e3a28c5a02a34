"""Fake upstreams, of which there are two.

- ``scripted``: a pool of candidates that answer as a test says, in each API format (``formats``).
  Its list of models, key and clock are those that ``racer init`` and ``racer doctor`` inspect.
- ``hostile``: a server on raw sockets that breaks in 75 ways, as a process of its own (``process``)
  or as replicas of a candidate on the event loop of a test (``replicas``).

These fakes are no upstreams and stay with their tests: the score service of
``app/test_custom_router`` and the name server of ``app/test_upstream_names`` speak other protocols,
as do the collector of traces and the wire to a database in ``tests/support``.
``benchmarks/test_load`` and ``deploy/test_dockerfile`` each fake a gateway, byte by byte. Bare
sockets that read nothing, or that answer TLS in plain text, are a line or two each.
"""
