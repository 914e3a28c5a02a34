"""Labelled rows: which candidates answered which query right."""
