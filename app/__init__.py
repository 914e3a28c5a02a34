"""The gateway: an HTTP server around :mod:`racer_core`, which does not know it.

Start at ``main.create_gateway``.
"""
