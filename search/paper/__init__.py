"""Chen et al., ICML 2023, as data: its result tables, best settings, set-ups and grids.

The files results.yaml, settings.yaml and setups.yaml of this package are read at the first call. They have what the
paper states; what optimizers search by default is in admeta's registry, and our results are in the database.
"""
