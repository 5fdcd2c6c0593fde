"""Data sets: finding or fetching them, their files, validation held out of them, and what a node keeps of them."""
