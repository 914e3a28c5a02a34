"""Votes over the candidates' answers; knows no HTTP, no encoder and no calibration.

``rule`` says when answers are equal: by a form (``answers``), by content words (``wording``) or by
meaning (``semantic``). ``vote`` elects one, ``early`` ends votes early.
"""
