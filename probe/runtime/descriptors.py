"""The process's limit of file descriptors."""

import resource


def raise_descriptor_limit() -> None:
    """Raise the limit as far as the system allows without privileges.

    The usual soft limit, 1024, is low for the sake of programs that call select(2), which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS refuses "unlimited"; a sandbox may refuse any change
            return
