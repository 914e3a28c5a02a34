"""Readers and writers of labelled rows; they know no encoder, router or calibration."""
