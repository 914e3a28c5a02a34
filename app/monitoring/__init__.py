"""Monitoring: decision log, feedback, shadow sample, drift alarms; knows no HTTP, no model."""
