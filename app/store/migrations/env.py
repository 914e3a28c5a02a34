"""Runs the versions in the caller's transaction; ``app/store/schema.py`` calls it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
