"""Which label sets in a Prometheus are one server, and what it is called."""

from dataclasses import replace
from typing import Any

from for_each import for_each

from probe.observe.server_past import ServerPast, histogram_of, names_of, once

STEPS = (300.0, 600.0, 900.0, 1200.0)


def _past(tokens: float = 100.0, scrapes: float = 5.0, **labels: str) -> ServerPast:
    values = {"scrapes": dict.fromkeys(STEPS, scrapes), "generation_tokens": dict.fromkeys(STEPS, tokens)}
    return ServerPast("/".join(labels.values()), labels, "vllm:", STEPS, 300.0, values=values)


NAMES: dict[str, tuple[list[dict[str, str]], list[str]]] = {
    "a pod": ([{"pod": "llama-0", "instance": "10.0.0.1:8000"}], ["llama-0"]),
    "an instance": ([{"instance": "gpu1:8000", "job": "vllm"}], ["gpu1:8000"]),
    "one name in two namespaces": (
        [{"pod": "a", "namespace": "chat"}, {"pod": "a", "namespace": "rag"}, {"pod": "b", "namespace": "rag"}],
        ["chat/a", "rag/a", "b"],
    ),
    "in two clusters": (
        [{"instance": "a", "cluster": "eu"}, {"instance": "a", "cluster": "us"}],
        ["eu/a", "us/a"],
    ),
    "two models on one page": (
        [{"instance": "a", "model_name": "m"}, {"instance": "a", "model_name": "n"}],
        ["m/a", "n/a"],
    ),
    "no label that names a server": ([{"model_name": "m", "job": "vllm"}], ["m"]),
    "only an unusual label": ([{"app": "x"}, {"app": "y"}], ["x", "y"]),
    "relabelled": ([{"exported_pod": "llama-0", "pod": "collector-1"}], ["collector-1"]),
}


@for_each(NAMES)
def test_a_server_is_named_by_as_little_as_tells_it_apart(case: str) -> None:
    labels, names = NAMES[case]
    assert names_of(labels) == names


ONE: dict[str, tuple[ServerPast, bool]] = {
    "an HA pair of Prometheus": (_past(pod="a", prometheus_replica="b"), True),
    "a second job that scrapes the page": (_past(pod="a", job="other"), True),
    "another namespace": (_past(pod="a", namespace="rag"), False),
    "another cluster": (_past(pod="a", cluster="us"), False),
    "another count": (_past(tokens=103, pod="a", prometheus_replica="b"), False),
}


@for_each(ONE)
def test_records_of_one_server_are_one(case: str) -> None:
    other, is_same = ONE[case]
    first = _past(
        scrapes=20.0, pod="a", **({"prometheus_replica": "a"} if "prometheus_replica" in other.labels else {})
    )
    found = once([other, first])
    assert len(found) == (1 if is_same else 2)
    if is_same:
        assert found[0].labels == first.labels, "the one with most scrapes"
        assert found[0].records == (other.labels,)


def test_two_servers_without_a_label_of_a_place_stay_two() -> None:
    assert len(once([_past(job="a"), _past(job="b")])) == 2


def test_a_server_is_gone_without_scrapes_unless_its_target_is_still_there() -> None:
    seen: dict[str, Any] = {"scrapes": {300.0: 5.0, 600.0: 5.0}}
    past = replace(_past(pod="a"), values=seen)
    assert past.is_gone
    assert not replace(past, values={**seen, "up": {1200.0: 0.0}}).is_gone


def test_matchers_leave_out_the_model_and_escape() -> None:
    one = replace(_past(pod='a"b', model_name="m"), without=("replica",))
    assert one.matchers == 'pod="a\\"b", replica=""', "else those of its other record would be added up"


def test_growth_that_prometheus_extrapolated_is_made_to_rise() -> None:
    found = histogram_of({"0.5": 10.2, "0.1": -0.1, "1.0": 10.1, "+Inf": 10.15})
    assert found is not None
    assert found.buckets == ((0.1, 0.0), (0.5, 10.15), (1.0, 10.15), (float("inf"), 10.15))
    assert histogram_of({"0.5": 10.0}) is None
