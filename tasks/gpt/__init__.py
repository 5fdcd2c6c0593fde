"""Language modelling: a decoder trained from scratch on text files."""
