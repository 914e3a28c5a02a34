"""The gateway: an HTTP server around :mod:`racer_core`. Start at ``main.create_gateway``."""
