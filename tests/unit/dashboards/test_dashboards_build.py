"""The files: as committed, with a prefix, and as manifests."""

import json

import kubernetes_validate
import pytest
import yaml
from our_dashboards import CONFIG, ROOT

from alerts.links import CAPACITY, FLEET, PROBE, SERVER, TARGET
from dashboards import build
from probe.core.errors import ConfigError

pytestmark = pytest.mark.slow

UIDS = (FLEET, TARGET, SERVER, CAPACITY, PROBE)
# kubectl keeps what it applied in an annotation, and all of an object's annotations may have so much.
ANNOTATIONS_BYTES = 256 * 1024


def test_the_committed_examples_are_what_the_generator_makes() -> None:
    generated = ROOT / "dashboards/generated"
    assert {path.name: path.read_text() for path in generated.glob("*.json")} == build.render(CONFIG), (
        "run `make generate`"
    )


def test_a_file_is_named_by_the_uid_of_its_dashboard() -> None:
    files = {name: json.loads(text) for name, text in build.render(CONFIG).items()}
    assert {name: dashboard["uid"] for name, dashboard in files.items()} == {f"{uid}.json": uid for uid in UIDS}
    assert [dashboard["title"] for dashboard in files.values()] == [
        "Kneewatch / Fleet", "Kneewatch / Target", "Kneewatch / Server", "Kneewatch / Capacity", "Kneewatch / Probe",
    ]  # fmt: skip


def test_a_prefix_is_before_each_uid_and_in_every_link() -> None:
    plain, prefixed = build.render(CONFIG), build.render(CONFIG, uid_prefix="team-a-")
    assert list(prefixed) == [f"team-a-{name}" for name in plain]
    for name, text in plain.items():
        mine = prefixed[f"team-a-{name}"]
        assert json.loads(mine)["uid"] == f"team-a-{json.loads(text)['uid']}"
        assert mine.count("/d/team-a-kneewatch-") == text.count("/d/kneewatch-") >= 3
        assert "/d/kneewatch-" not in mine
        # Nothing else is another.
        assert mine.replace("team-a-kneewatch-", "kneewatch-") == text


def test_runbooks_may_lie_elsewhere() -> None:
    for text in build.render(CONFIG, runbooks="https://wiki.example/kneewatch").values():
        dashboard = json.loads(text)
        links = [link["url"] for panel in build.panels_of(dashboard) for link in panel["links"]]
        assert links
        assert all(link.startswith("https://wiki.example/kneewatch/Kneewatch") for link in links)


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_manifests_are_config_maps_that_grafanas_sidecar_finds(version: str) -> None:
    files = build.render(CONFIG, uid_prefix="team-a-", configmap=True, namespace="monitoring")
    dashboards = build.render(CONFIG, uid_prefix="team-a-")
    assert list(files) == [f"team-a-{uid}.configmap.yaml" for uid in UIDS]
    for name, text in files.items():
        manifest = yaml.safe_load(text)
        kubernetes_validate.validate(manifest, version, strict=True)
        uid = name.removesuffix(".configmap.yaml")
        assert manifest["kind"] == "ConfigMap"
        assert manifest["metadata"] == {
            "name": uid,
            "namespace": "monitoring",
            "labels": {"grafana_dashboard": "1", "app.kubernetes.io/name": "kneewatch"},
        }
        ((key, dashboard),) = manifest["data"].items()
        assert key == f"{uid}.json"
        assert json.loads(dashboard) == json.loads(dashboards[key])
        assert len(json.dumps(json.dumps(manifest))) < ANNOTATIONS_BYTES


def test_without_a_namespace_the_manifest_has_none() -> None:
    for text in build.render(CONFIG, configmap=True).values():
        assert "namespace" not in yaml.safe_load(text)["metadata"]


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"uid_prefix": 23 * "x"}, "--uid-prefix x"),
        ({"uid_prefix": "a/b"}, "--uid-prefix a/b"),
        ({"uid_prefix": "Team_a-", "configmap": True}, "--uid-prefix Team_a-: names ConfigMaps too"),
        ({"uid_prefix": "-", "configmap": True}, "--uid-prefix -: names ConfigMaps too"),
        ({"namespace": "monitoring"}, "--namespace: goes with --configmap only"),
        ({"namespace": "a_b", "configmap": True}, "--namespace a_b: expected"),
    ],
)
def test_names_that_grafana_or_kubernetes_would_reject_are_refused(options: dict[str, object], reported: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build.render(CONFIG, **options)  # type: ignore[arg-type]
    assert str(refused.value).startswith(reported)
    assert "\n" not in str(refused.value)


def test_the_longest_prefix_fills_a_uid() -> None:
    uids = [json.loads(text)["uid"] for text in build.render(CONFIG, uid_prefix=22 * "x").values()]
    assert max(map(len, uids)) == 40


def _min_steps(dashboards: dict[str, str], *, of_canaries: bool) -> set[str | None]:
    """Return the "Min step" of each query with a rate of canaries, or of the server's metrics."""
    named = '"canary"' if of_canaries else "kneewatch_server_"
    return {
        target.get("interval")  # the query's own: a panel's does not count for the rate's window
        for text in dashboards.values()
        for panel in build.panels_of(json.loads(text))
        for target in panel["targets"]
        if named in target["expr"] and "$__rate_interval" in target["expr"]
    }


def test_a_rate_covers_four_scrapes_whatever_grafana_believes_the_interval_to_be() -> None:
    for dashboards, wanted in (
        (build.render(CONFIG), "1m"),
        (build.render(CONFIG, scrape_interval_s=15), "15s"),
    ):
        assert _min_steps(dashboards, of_canaries=False) == {wanted}
        marks = [mark["target"] for text in dashboards.values() for mark in json.loads(text)["annotations"]["list"]]
        assert {mark.get("interval") for mark in marks if "$__rate_interval" in mark["expr"]} == {wanted}


def test_a_rate_of_canaries_covers_four_of_the_slowest() -> None:
    canary = CONFIG.targets[0].canary.model_copy(update={"every": 120.0})
    slow = CONFIG.model_copy(update={"targets": (CONFIG.targets[0].model_copy(update={"canary": canary}),)})
    assert _min_steps(build.render(slow), of_canaries=True) == {"2m"}
    assert _min_steps(build.render(slow), of_canaries=False) == {"1m"}
