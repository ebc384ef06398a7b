"""One guarded capacity run: admission, lock, load, guard, result."""
