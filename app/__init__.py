"""The gateway: HTTP around :mod:`racer_core`. Start at ``main.create_gateway``."""
