"""Text: transformers checkpoints, tokens in memory, batches by length; classification and regression of sentences."""
