"""Where a target is, and how to get in: the address, the key and the trust, in one value."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass


def _no_secret() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. `secret` is asked at each request, because mounted keys rotate."""

    target: str
    base_url: str
    metrics_url: str = ""
    secret: Callable[[], str | None] = _no_secret
    ca_file: str | None = None
    verify: bool = True

    @property
    def metrics_address(self) -> str:
        """`metrics_url`, or /metrics beside the API."""
        return self.metrics_url or f"{self.base_url}/metrics"

    def headers(self, url: str) -> dict[str, str]:
        """What to send along to `url`; the key goes to the target's own address alone.

        Raises ValueError, in words, for a key that cannot be read or sent.
        """
        if not url.startswith(f"{self.base_url}/"):
            return {}
        try:
            secret = self.secret()
        except OSError as error:
            raise ValueError(f"the API key cannot be read ({error.strerror})") from None
        except UnicodeError:
            secret = "\0"  # noqa: S105 - refused below
        if secret and not (secret.isascii() and secret.isprintable()):
            raise ValueError("the API key is not something a header can carry")
        return {"authorization": f"Bearer {secret}"} if secret else {}

    def tls(self) -> ssl.SSLContext | bool:
        """httpx's `verify`: the system's trust, the target's own CA, or none."""
        if not self.verify:
            return False
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True
