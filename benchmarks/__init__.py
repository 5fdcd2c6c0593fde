"""Measurements, each by one command; they print ratios and assert nothing."""
