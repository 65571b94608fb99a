"""`python -m fedpace` is `fedpace`."""

from fedpace.cli import main

main()
