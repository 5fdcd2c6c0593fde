"""The Alembic tree of our tables: packaged, so that an installed service can upgrade its database."""
