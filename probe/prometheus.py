"""Questions to Prometheus. The only module that imports prometheus_api_client, whose calls block.

Import it where it is needed and not at start: it brings numpy and a date parser into memory.
"""

import asyncio
import json
from typing import Any

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests import RequestException

from probe.errors import TargetError
from probe.records import Outcome
from probe.words import one_line


class Prometheus:
    """One Prometheus server."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Unless told, the library tries four times with pauses between, in a thread that a shutdown waits for.
        self._connection = PrometheusConnect(url=url, timeout=5, retry=0)

    async def firing_pages(self, target: str) -> list[str]:
        """Names of the paging alerts that fire for a target now. Raises TargetError without an answer.

        Tickets do not count: "the knee is down" is one, and must not keep us from measuring the knee again.
        """
        query = f'ALERTS{{alertstate="firing", severity="page", target={json.dumps(target)}}}'
        try:
            answer: list[dict[str, Any]] = await asyncio.to_thread(self._connection.custom_query, query)
            return sorted({str(sample["metric"].get("alertname", "?")) for sample in answer})
        except (PrometheusApiClientException, RequestException, ValueError) as error:
            words = one_line(str(error))
            raise TargetError(f"{self._url}: Prometheus does not answer ({words})", Outcome.UNREACHABLE) from None
        except (LookupError, TypeError, AttributeError):
            raise TargetError(
                f"{self._url}: this is not Prometheus's answer to a query; check prometheus.url", Outcome.UNREACHABLE
            ) from None
