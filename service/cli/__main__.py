"""`python -m service.cli` is `admeta`."""

from service.cli import main

main()
