"""`python -m probe` is `kneewatch`."""

from probe.cli.main import main

main()
