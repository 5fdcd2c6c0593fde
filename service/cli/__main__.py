"""`python -m service.cli` is `admeta`."""

from admeta.cli import main

main()
