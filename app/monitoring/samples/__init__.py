"""Sampled requests that become labelled rows: draw, store, labels; knows no HTTP."""
