"""Routing: from a query to a set and its certificate; knows no candidate's answer and no endpoint.

It knows the store, settings and metrics, and of a request body only the messages that are routed
on.
"""
