"""`python -m studytool` is the `studytool` command."""

from studytool.cli import main

main()
