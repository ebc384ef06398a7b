"""What the client's tests share: those that take `run` run on both kinds of event loop."""

from both_loops import run

__all__ = ["run"]
