"""One revision a file, named by its number."""
