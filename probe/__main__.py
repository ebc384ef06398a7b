"""`python -m probe` is `kneewatch`."""

from kneewatch import main

main()
