"""Which servers are watched."""
