"""Metrics, traces, logs and the event loop lag of the process; knows no request and no router."""
