"""Offline tools behind the commands; they know no endpoint and no command.

They label, evaluate, tune, diagnose and demonstrate.
"""
