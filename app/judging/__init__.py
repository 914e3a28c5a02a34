"""Judging: whether an answer is right, by evaluators, checkers, formulas; knows no request's path.

It asks candidates and processes, and knows neither routing nor the store.
"""
