"""Merging the candidates' answers.

``answers`` and ``semantic`` say when two are equal, ``vote`` who wins, ``early`` when that is sure.
"""
