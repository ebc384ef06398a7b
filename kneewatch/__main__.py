"""`python -m kneewatch` is `kneewatch`."""

from kneewatch import main

main()
