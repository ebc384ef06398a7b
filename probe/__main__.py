"""`python -m probe` is `kneewatch`."""

from probe.cli import main

main()
