"""`python -m wirelag.cli`."""

from wirelag.cli import main

main()
