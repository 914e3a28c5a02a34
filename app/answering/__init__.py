"""Answering: routing, calls, merge and record of a request; knows no web framework.

It knows routing, upstream, monitoring and wire formats; it knows no endpoint.
"""
