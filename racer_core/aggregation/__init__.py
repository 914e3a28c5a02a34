"""Votes over the candidates' answers; knows no HTTP, no encoder and no calibration.

``answers`` and ``semantic`` define equal answers, ``vote`` elects one, ``early`` ends votes early.
"""
