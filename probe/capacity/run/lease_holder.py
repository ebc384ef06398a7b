"""Who holds a Lease and for how long, and the rights that Leases need; for the lock and for other_probers.py."""

import secrets
import socket

from probe.kubernetes.lease import LeaseSpec

LASTS_S = 10  # more than lease_lock.LOST_S, and than a load worker needs to see that its controller has died
LONGEST_S = 60.0  # the longest duration of a Lease that is believed
# The prefix of this process's identities; each of its Leases has its own identity.
_PROCESS = f"{socket.gethostname()}_{secrets.token_hex(4)}"


def new_identity() -> str:
    return f"{_PROCESS}{secrets.token_hex(2)}"


def is_held_here(spec: LeaseSpec) -> bool:
    """Return whether this process holds the Lease."""
    return (spec.holder_identity or "").startswith(_PROCESS)


def lasts_s(spec: LeaseSpec) -> float:
    """Return how long a Lease has to stay unchanged before it may be taken over, in seconds."""
    return min(max(LASTS_S, spec.lease_duration_seconds or 0), LONGEST_S)


def role_words(namespace: str | None) -> str:
    """Return the rights that are missing where the API server refuses."""
    verbs = "get, list, create, update and delete"
    return f"it needs a Role in {namespace} with {verbs} of leases (docs/discovery.md)"
