"""Diagnostics of a deployment: one check per file, none of which changes anything.

A check takes what it examines and returns findings. ``run`` puts the checks in order and skips a
check whose precondition failed, because its finding would add nothing.
"""
