from both_loops import run

__all__ = ["run"]
