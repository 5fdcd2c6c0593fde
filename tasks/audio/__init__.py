"""Audio: recordings of any rate and channels, batches by length, wav2vec 2.0 and a small net on spectrograms."""
