"""Data sets: finding and fetching files, reading trees, holding out validation, and the node's cache."""
