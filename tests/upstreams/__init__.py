"""Fake upstreams.

- ``scripted``: a pool of candidates that answer as a test says, in each API format (``formats``).
  Its list of models, key and clock are those that ``racer init`` and ``racer doctor`` inspect.
- ``hostile``: a process that breaks in 75 ways.
- ``replicas``: servers of one candidate on the event loop of the test. They count connections and
  health checks, see when a caller leaves, and can stop and listen again on the same port.
"""
