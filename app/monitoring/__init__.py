"""Monitoring: decision log, feedback, shadow sample, drift alarms; knows no HTTP, no model.

Its settings are the section ``watching``.
"""
