"""From measured steps to a capacity. Pure."""
