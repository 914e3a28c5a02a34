"""Alembic's scripts, one for each version of the tables; know no module of ``app``."""
