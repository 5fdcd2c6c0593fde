"""The product people talk to: REST, database, supervisor, client and command line."""
