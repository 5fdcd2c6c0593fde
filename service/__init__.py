"""The service: REST, database, supervisor, pages, and the commands that work on it directly."""
