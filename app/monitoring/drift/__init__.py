"""Drift: statistics that notice changed traffic or risk, and their alarms; knows no HTTP."""
