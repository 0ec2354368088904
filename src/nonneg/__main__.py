"""`python -m nonneg` is the command line."""

from nonneg.cli import main

main()
