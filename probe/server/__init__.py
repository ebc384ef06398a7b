"""What the server says of itself: its /metrics page as a ServerSnapshot."""
