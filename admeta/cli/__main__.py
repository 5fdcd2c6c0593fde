"""`python -m admeta.cli` is `admeta`."""

from admeta.cli import main

main()
