"""The daemon: runs canaries, scrapes and capacity runs for every target, on a schedule."""
