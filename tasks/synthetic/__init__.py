"""Toy surfaces: the optimizer itself walks them; no data, no network."""
