"""What Kneewatch asks of an API server, what its Roles allow, and an API server that is slow or takes a Lease away."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import endpoint, endpoint_slice, pod
from cluster import Cluster, cluster
from kneewatch_command import kneewatch, start_kneewatch
from monitor import Monitor, Sim
from process import eventually

__all__ = ["cluster"]

DISCOVERY = Path(__file__).parents[2] / "deploy/kustomize/discovery"
SMALL = {"workloads": {"default": {"prompt_tokens": 8, "output_tokens": 3}}}
RAMP = ("--rates", "10", "--confirm-seconds", "0", "--no-guard")


def granted() -> dict[str, set[str]]:
    """Return the verbs by resource of the Roles in deploy/."""
    rules = [
        rule
        for manifest in yaml.safe_load_all((DISCOVERY / "roles.yaml").read_text())
        for rule in manifest.get("rules", ())
    ]
    # The rule for EndpointSlices is in a comment of the kustomization.
    (slices,) = re.findall(r"# +value: (.*endpointslices.*)", (DISCOVERY / "kustomization.yaml").read_text())
    rules.append(yaml.safe_load(slices))
    verbs: dict[str, set[str]] = defaultdict(set)
    for rule in rules:
        for resource in rule["resources"]:
            verbs[resource] |= set(rule["verbs"])
    return dict(verbs)


def asked(requests: list[str]) -> dict[str, set[str]]:
    """Return the verbs by resource of requests to the API server; what is no known resource keeps its path."""
    verbs: dict[str, set[str]] = defaultdict(set)
    for request in requests:
        method, target = request.split(" ")
        path, _, query = target.partition("?")
        found = re.fullmatch(r"/(?:api/v1|apis/[a-z.0-9]+/v1)/namespaces/serving/(\w+)(/[\w.-]+)?", path)
        resource, name = found.groups() if found else (path, None)
        reading = "watch" if "watch=true" in query else "get" if name else "list"
        verbs[resource].add({"GET": reading, "POST": "create", "PUT": "update", "DELETE": "delete"}[method])
    return dict(verbs)


def config(tiny: Sim, **more: Any) -> dict[str, Any]:
    return {**SMALL, "lease": {}, "targets": [{"name": "a", "base_url": tiny.base_url}], **more}


def found_by(**how: Any) -> dict[str, Any]:
    return {"name": next(iter(how)), "discover": {"kubernetes": {**how, "namespace": "serving"}}}


@pytest.mark.fault(
    "KU36",
    "A token of Kneewatch is stolen",
    area="Kubernetes",
    users_see="nothing",
    stays="it can do what the Roles in `deploy/` allow, which is what Kneewatch asks for: list and watch pods "
    "and EndpointSlices, get, list, create, update and delete Leases",
)
def test_a_pod_asks_for_all_that_its_roles_allow_and_for_nothing_else(
    cluster: Cluster, tiny: Sim, tmp_path: Path
) -> None:
    cluster.do(lambda api: api.put(pod("qwen-a", "127.0.0.1", labels={"app": "qwen"})))
    cluster.do(lambda api: api.put(endpoint_slice("s", endpoint("127.0.0.1"))))
    targets = [found_by(selector="app=qwen", port=tiny.port), found_by(endpoints="qwen", port=tiny.port)]
    with Monitor(config(tiny, targets=targets), tmp_path / "run") as monitor:
        up = 'kneewatch_target_up{target="'
        eventually(lambda: monitor.page("/metrics").count(up) == 2, within_s=40, what="two targets")
        file = tmp_path / "ramp.yml"
        file.write_text(yaml.safe_dump(config(tiny)))
        done = kneewatch("ramp", "-c", file, *RAMP, "--step-seconds", "4")
        assert done.status in (0, 1), done.err
        eventually(lambda: "list" in asked(cluster.api.asked).get("leases", ()), within_s=20, what="Leases are listed")
    assert asked(cluster.api.asked) == granted()


@pytest.mark.fault(
    "KU37",
    "A deployment without discovery and Leases",
    area="Kubernetes",
    users_see="nothing",
    stays="the API server is not asked for anything",
)
def test_the_api_server_is_not_asked_where_nothing_needs_it(cluster: Cluster, tiny: Sim, tmp_path: Path) -> None:
    target = {"name": "a", "base_url": tiny.base_url, "canary": {"every": "1s"}}
    with Monitor({**SMALL, "targets": [target]}, tmp_path / "run") as monitor:
        eventually(lambda: 'up{target="a"} 1.0' in monitor.page("/metrics"), within_s=40, what="a canary")
        assert cluster.api.asked == []


@pytest.mark.fault(
    "KU44",
    "The API server takes up to 1.1 s for each answer, or is silent for 1.5 s now and then",
    area="Kubernetes",
    users_see="nothing",
    stays="the run ends as planned, and its Lease is deleted",
)
def test_a_slow_api_server_takes_no_lease_away(cluster: Cluster, tiny: Sim, tmp_path: Path) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config(tiny)))
    cluster.api.takes_s = 0.7
    done = kneewatch("ramp", "-c", file, *RAMP, "--step-seconds", "5")
    assert done.err == ""
    assert "Ended by:    done" in done.out
    assert cluster.api.leases == {}


@pytest.mark.parametrize("verb", ["get", "create"])
@pytest.mark.fault(
    "KU38",
    "The Role lacks `get` for Leases",
    area="Kubernetes",
    users_see="a ramp is refused in one line with the verbs it needs, exit 2",
    stays="no load",
    case="get",
)
@pytest.mark.fault(
    "KU39",
    "The Role lacks `create` for Leases",
    area="Kubernetes",
    users_see="a ramp is refused in one line with the verbs it needs, exit 2",
    stays="no load",
    case="create",
)
def test_a_role_that_lacks_a_verb_is_one_line_and_no_load(
    cluster: Cluster, tiny: Sim, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config(tiny)))
    cluster.do(lambda api: api.forbidden.add(f"{verb} leases"))
    done = kneewatch("ramp", "-c", file, *RAMP, "--step-seconds", "5")
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert f'cannot {verb} resource "leases"' in line
    assert "needs a Role in serving with get, list, create, update and delete of leases" in line


@pytest.mark.parametrize("how", ["stolen", "forbidden"])
@pytest.mark.fault(
    "KU42",
    "The Lease is stolen during a ramp",
    area="Kubernetes",
    users_see="one line with the thief's name, the result so far",
    stays="load gone within 3 s; the thief keeps it",
    case="stolen",
)
@pytest.mark.fault(
    "KU43",
    "The Role loses `update` during a ramp",
    area="Kubernetes",
    users_see="one line: cannot update, the result so far",
    stays="load gone within 3 s",
    case="forbidden",
)
def test_a_ramp_that_loses_its_lease_ends_in_three_seconds_and_says_why(
    cluster: Cluster, tiny: Sim, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "kneewatch.yml"
    file.write_text(yaml.safe_dump(config(tiny)))
    ramp = start_kneewatch("ramp", "-c", file, *RAMP, "--step-seconds", "60", log=tmp_path / "ramp.log")
    try:
        eventually(lambda: cluster.api.leases, within_s=60, what="it has the Lease")
        cluster.do(steal if how == "stolen" else lambda api: api.forbidden.add("update leases"))
        eventually(lambda: not ramp.alive, within_s=20, what="the end of the command")
        said = ramp.tail()
    finally:
        ramp.kill()
    assert "Traceback" not in said
    assert f"kneewatch: the lease of localhost:{tiny.port} is lost: " in said
    assert ("usurper" if how == "stolen" else "cannot update resource") in said
    assert "Ended by:    interrupt (lost the Lease)" in said
    if how == "stolen":
        (lease,) = cluster.api.leases.values()
        assert lease["spec"]["holderIdentity"] == "usurper", "the thief keeps it"


def steal(api: Any) -> None:
    """Write another holder into the Lease, as another client would."""
    for lease in api.leases.values():
        api.version += 1
        lease["spec"]["holderIdentity"] = "usurper"
        lease["metadata"]["resourceVersion"] = str(api.version)
