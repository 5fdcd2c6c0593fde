"""Answers on a terminal: tables, and the progress of a study."""
