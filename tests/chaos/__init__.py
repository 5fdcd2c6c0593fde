"""The kill matrix: processes of a running search are killed at random moments, and then SQL must tell that nothing was
lost, repeated or left open. `python -m tests.chaos` runs it in full and prints its table."""
