"""Migrations, one module for each version of the tables; know no module of ``app``.

A released migration is never changed.
"""
