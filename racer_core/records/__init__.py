"""Readers and writers of labelled rows; know no encoder, router or calibration."""
