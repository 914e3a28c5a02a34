"""Sampled requests that become labelled rows."""
