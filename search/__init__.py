"""What a study is and how it is run: definition, samplers, pruners, the driver over Ray Tune, analysis.

Nothing here opens a database: the driver works on a `search.store.Store` it is given.
"""
