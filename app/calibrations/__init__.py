"""Calibrations: from an upload of labelled rows to a stored, active record; knows no endpoint."""
