"""Fake upstreams.

``scripted`` is a pool of candidates that answer as a test says, in each API format (``formats``).
``hostile`` is a process that breaks in 75 ways. ``replicas`` are sockets on the loop of a test, for
connections and deadlines. ``single_server`` has a list of models, a key and a clock.
"""
