"""Question answering: SQuAD's files, spans from logits, the official scores."""
