"""Metrics, traces, logs and the event loop lag of the process. Knows no request and no router."""
