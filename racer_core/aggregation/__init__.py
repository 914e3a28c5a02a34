"""Merging the candidates' answers: ``answers`` says when two are equal, ``vote`` who wins."""
