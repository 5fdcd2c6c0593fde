"""Named entities: CoNLL files, tags of tokens, scores of whole entities."""
