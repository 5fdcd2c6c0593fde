"""Measurements behind docs/benchmarks.md; each is one command."""
