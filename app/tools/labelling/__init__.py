"""Labelling of rows: calls every candidate, grades the answers, writes rows."""
