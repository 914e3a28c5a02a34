"""Routing: from a query to a set of candidates and its certificate.

Knows the store, settings and metrics; knows no candidate's answer, no endpoint and no request body
beyond the messages that are routed on.
"""
