"""Judging: whether an answer is right, by evaluators, checkers and formulas; knows no request's path.

It asks candidates and processes, and knows neither routing nor the store.
"""
