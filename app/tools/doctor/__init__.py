"""Diagnostics of a deployment; knows no command and no HTTP server.

A check takes what it examines and returns findings; it changes nothing. ``run`` has the checks, in
order, and skips a check whose precondition failed, because its finding would add nothing.
"""
