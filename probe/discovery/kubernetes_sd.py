"""Discovery by the Kubernetes API: pods by their labels, or the endpoints of a Service.

In: the `discover.kubernetes` section. Out: states (types.py), each change within a second. kubernetes_watch.py lists
and watches the resource; pods.py and endpointslices.py find the servers in it.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager

from probe.config.discovery import KubernetesDiscovery
from probe.discovery.endpointslices import SERVICE_NAME, EndpointSlice, Slices
from probe.discovery.kubernetes_watch import ObjectWatch, WatchedResource
from probe.discovery.pods import Pod, Pods
from probe.discovery.polling import ProblemReporter, followed
from probe.discovery.types import DiscoveredServer, State, state_of
from probe.kubernetes.client import KubernetesClient, open_cluster

PODS = WatchedResource("pods", "api/v1", Pod)
SLICES = WatchedResource("endpointslices", "apis/discovery.k8s.io/v1", EndpointSlice)


class KubernetesSource:
    """The pods or endpoints, and the Service in front of them if the configuration names one."""

    def __init__(
        self,
        config: KubernetesDiscovery,
        scheme: str,
        path: str,
        reporter: ProblemReporter,
        *,
        connect: Callable[[], AbstractAsyncContextManager[KubernetesClient]] = open_cluster,
    ) -> None:
        self._scheme, self._path = scheme, path
        self._port, self._service = config.port, config.service
        self._watched: ObjectWatch[Pod] | ObjectWatch[EndpointSlice]
        if config.selector is not None:
            pods = Pods(config.port, scheme, path)
            self._watched = ObjectWatch(
                PODS, config.selector, pods, namespace=config.namespace, reporter=reporter, connect=connect
            )
        else:
            slices, selector = Slices(config.port, scheme, path), f"{SERVICE_NAME}={config.endpoints}"
            self._watched = ObjectWatch(
                SLICES, selector, slices, namespace=config.namespace, reporter=reporter, connect=connect
            )

    def states(self) -> AsyncGenerator[State, None]:
        return followed(self._watched.follow, self._state)

    def _state(self) -> State | None:
        found = self._watched.state
        return None if found is None else state_of((*found, *self._gateway()))

    def _gateway(self) -> tuple[DiscoveredServer, ...]:
        """Return the Service, even if it has no pods: users still ask it. Its DNS name needs no permission."""
        if self._service is None:
            return ()
        name, _, port = self._service.partition(":")
        authority = f"{name}.{self._watched.namespace}.svc:{port or self._port}"
        return (DiscoveredServer(id=name, base_url=f"{self._scheme}://{authority}{self._path}"),)
