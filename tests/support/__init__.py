"""Shared helpers of the tests: gateways, rows, waiting. No test and no fixture lives here."""
