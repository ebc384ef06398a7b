"""What successive scrapes show: user traffic, restarts, cross-checks; the guard."""
