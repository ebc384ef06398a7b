"""Which pages fire for a target, asked of a server that answers like Prometheus, or unlike it."""

import asyncio
import math
import re
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from fake_prometheus import prometheus as _prometheus
from hostile_server import CLOSE, HANG, Asked, head, hostile

from alerts.capacity import capacity_group
from alerts.rules import Alert
from probe.config.config_file import config_from
from probe.config.prometheus import PrometheusConfig
from probe.core.errors import TargetError
from probe.core.request import Outcome
from probe.core.shift import CapacitySample
from probe.core.snapshot import ServerSnapshot
from probe.prometheus import queries
from probe.prometheus.queries import Prometheus
from probe.runtime.kept_program import free_port


def connection(url: str, **values: Any) -> Prometheus:
    return Prometheus(PrometheusConfig(url=url, **values))


CONFIG = config_from({"targets": [{"name": "a", "base_url": "http://x:1"}]}, "test")


def _vector(*names: str) -> dict[str, object]:
    result = [{"metric": {"alertname": name, "severity": "page"}, "value": [1.0, "1"]} for name in names]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _firing(url: str, target: str = "a") -> list[str]:
    return asyncio.run(connection(url).firing_pages(target))


def test_the_names_of_the_alerts_once_each_in_order() -> None:
    with _prometheus(_vector("Slow", "Down", "Slow")) as (url, _):
        assert _firing(url) == ["Down", "Slow"]


def test_a_prometheus_of_a_private_authority_is_asked_with_its_ca_file(tmp_path: Path) -> None:
    authority, tls, ca_file = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(ca_file)
    with _prometheus(_vector("Down"), tls=tls) as (url, _):
        assert asyncio.run(connection(url, ca_file=ca_file).firing_pages("a")) == ["Down"]
        with pytest.raises(TargetError, match="certificate"):
            _firing(url)


def _alert(value: str, **labels: str) -> dict[str, object]:
    return {"metric": {"alertname": "KneewatchTTFTBurn", "severity": "ticket", **labels}, "value": [1.0, value]}


def test_firing_alerts_have_their_target_and_since_when_and_pages_come_first() -> None:
    answer = [
        _alert("1795402140", target="a"),
        _alert("1795402200", target="b", severity="critical", urgency="page"),
        _alert("1", alertname="KneewatchConfigRefused"),
        _alert("1795402140", target="a", severity="none", alertname="KneewatchTargetDown"),
    ]
    with _prometheus({"status": "success", "data": {"resultType": "vector", "result": answer}}) as (url, queries):
        found = asyncio.run(connection(url).firing_alerts())
    assert [(one.name, one.severity, one.target, one.since_s) for one in found] == [
        ("KneewatchTTFTBurn", "page", "b", 1795402200.0),
        ("KneewatchConfigRefused", "ticket", None, None),
        ("KneewatchTTFTBurn", "ticket", "a", 1795402140.0),
    ]
    assert 'alertname=~"Kneewatch.+"' in queries[0], "those of others are theirs"


def _places(*clusters: str) -> dict[str, object]:
    """Return an answer to `group by (cluster, namespace)`: where there are targets of the name."""
    metrics = [{"cluster": one, "namespace": "monitoring", "of": "place"} for one in clusters]
    found = [{"metric": metric, "value": [1.0, "1"]} for metric in metrics]
    return {"status": "success", "data": {"resultType": "vector", "result": found}}


def test_where_the_target_is_is_no_alert() -> None:
    with _prometheus(_places("eu")) as (url, queries):
        assert _firing(url) == []
        assert asyncio.run(connection(url).firing_alerts()) == []
    assert all("group by (cluster, namespace)" in query for query in queries)
    assert all("__name__" not in query for query in queries), "Google's takes exact names only"


@pytest.mark.fault(
    "PR16",
    "One Prometheus for several clusters, with targets of the same name",
    area="Prometheus",
    users_see="one line with the clusters and the setting to add: no load",
    stays="nothing of another cluster is taken for the target's own",
)
@pytest.mark.parametrize(
    "asked",
    [
        lambda it: it.firing_pages("a"),
        lambda it: it.firing_alerts(),
        lambda it: it.capacity_history("a", "chat", 4e7),
        lambda it: it.users_peak("a", 3600.0),
    ],
)
def test_an_answer_of_several_clusters_is_refused(asked: Callable[[Prometheus], Coroutine[Any, Any, Any]]) -> None:
    with _prometheus(_places("us", "eu")) as (url, _), pytest.raises(TargetError) as raised:
        asyncio.run(asked(connection(url)))
    assert str(raised.value).endswith(
        "several Kneewatches have such series (cluster: eu, us); set prometheus.labels to those of one"
    )


def test_every_question_has_the_labels_of_this_kneewatch() -> None:
    with _prometheus(_places("eu")) as (url, queries):
        of_one = connection(url, labels={"cluster": "eu", "stage": 'a"b'})
        asyncio.run(of_one.firing_pages("a"))
        asyncio.run(of_one.firing_alerts())
        with suppress(TargetError):  # the answer is no range
            asyncio.run(of_one.capacity_history("a", "chat", 4e7))
        asyncio.run(of_one.users_peak("a", 3600.0))
    assert len(queries) == 18
    for query in queries:
        # Not of the names that a recording rule or this question itself makes.
        selectors = re.findall(r"\{[^{}]*\}", query)
        assert selectors
        assert all('cluster="eu", stage="a\\"b"}' in selector for selector in selectors)


@pytest.mark.fault(
    "PR4",
    "Alerts without names",
    area="Prometheus",
    users_see="an error: no load",
    stays="-",
)
def test_an_answer_without_alert_names_is_an_error() -> None:
    answer = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, "5"]}]}}
    with _prometheus(answer) as (url, _), pytest.raises(TargetError):
        asyncio.run(connection(url).firing_alerts())


def test_no_alert_is_an_empty_list() -> None:
    with _prometheus(_vector()) as (url, _):
        assert _firing(url) == []


def test_only_pages_that_fire_for_that_target_are_asked_for() -> None:
    with _prometheus(_vector()) as (url, queries):
        _firing(url, "llama-8b")
    (asked,) = queries
    # With `kneewatch alerts --severity page=critical`, the original severity is in `urgency`.
    for one, label in zip(asked.split(" or ")[:2], ("severity", "urgency"), strict=True):
        for matcher in ('alertstate="firing"', f'{label}="page"', 'target="llama-8b"'):
            assert matcher in one
    assert asked.startswith("/api/v1/query ALERTS{")


def test_the_page_about_the_knee_itself_keeps_nobody_from_measuring_it_again() -> None:
    """Else it could never end."""
    with _prometheus(_vector()) as (url, queries):
        _firing(url)
    (page,) = (rule.name for rule in capacity_group().rules if isinstance(rule, Alert) and rule.severity == "page")
    assert f'alertname!="{page}"' in queries[0]


@pytest.mark.fault(
    "PR5",
    "A target's name with quotes, in a query",
    area="Prometheus",
    users_see="it cannot leave its quotes",
    stays="-",
)
def test_a_name_cannot_leave_its_quotes() -> None:
    with _prometheus(_vector()) as (url, queries):
        _firing(url, 'a"} or vector(1) or ALERTS{x="\\')
    assert queries[0].count(r'target="a\"} or vector(1) or ALERTS{x=\"\\"}') == 4


def test_an_address_below_a_path_works() -> None:
    with _prometheus(_vector("Down")) as (url, queries):
        assert _firing(f"{url}/prometheus") == ["Down"]
    assert queries[0].startswith("/prometheus/api/v1/query ")


@pytest.mark.parametrize("status", [400, 401, 404, 422])
@pytest.mark.fault(
    "PR2",
    "Prometheus refuses the query",
    area="Prometheus",
    users_see="one line that names the address",
    stays="no load",
)
def test_a_refusal_is_an_error_that_names_the_address(status: int) -> None:
    with _prometheus({"status": "error", "error": "bad\nthing"}, status) as (url, _):
        with pytest.raises(TargetError) as raised:
            _firing(url)
        assert str(raised.value).startswith(f"{url}: ")
        assert str(status) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.outcome is Outcome.UNREACHABLE


@pytest.mark.parametrize(
    "body",
    [
        "<html>It works!</html>",
        "",
        {},
        [],
        {"status": "success", "data": None},
        {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1"]}},
        {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1.0, "1"]}]}},
    ],
    ids=["html", "empty", "object", "list", "no data", "scalar", "no metric"],
)
@pytest.mark.fault(
    "PR3",
    "An answer that is not Prometheus'",
    area="Prometheus",
    users_see="the same as no answer: no load",
    stays="-",
)
def test_an_answer_that_is_not_prometheus_is_an_error_like_no_answer(body: object) -> None:
    """Anything else would end in the schedule as a crash, and not as a refused run with its reason."""
    with _prometheus(body) as (url, _), pytest.raises(TargetError):
        _firing(url)


@pytest.mark.fault("PR1")
def test_a_prometheus_that_is_down_is_an_error_and_soon() -> None:
    """The question blocks a thread, which a shutdown has to wait for."""
    before = time.monotonic()
    with pytest.raises(TargetError, match="does not answer"):
        _firing(f"http://127.0.0.1:{free_port()}")
    assert time.monotonic() - before < 4.0


@pytest.mark.fault(
    "PM9",
    "An alert since `+Inf`, `1e300` or `NaN`",
    area="Prometheus",
    users_see="the alert, without a time",
    stays="pages",
)
def test_a_time_that_no_date_can_have_is_unknown() -> None:
    answer = [_alert(value, target=value) for value in ("+Inf", "1e300", "NaN", "-5")]
    with _prometheus({"status": "success", "data": {"resultType": "vector", "result": answer}}) as (url, _):
        found = asyncio.run(connection(url).firing_alerts())
    assert [one.since_s for one in found] == [None] * 4


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"data": {"result": ' + "[" * 100 + "]" * 100 + "}}", "the answer is nested deeper than 32"),
        ('{"data": {"result": [' + "{}," * 100_000 + "{}]}}", "the answer holds more than 100000 values"),
        ('{"data": {"result": "' + "x" * 2**21 + '"}}', "the answer is larger than 2 MiB"),
        ('{"data": {"result": NaN}}', "not Prometheus' answer"),
        ("<html>Log in</html>", "the answer is not JSON"),
        ({"data": {"result": []}, "warnings": ["store\na"]}, r"the answer is partial: \['store"),
    ],
    ids=["nested", "unfolds", "large", "no list", "html", "partial"],
)
@pytest.mark.fault("E01f", case="nested")
@pytest.mark.fault(
    "PM4",
    "A store behind Prometheus is away, so the answer is partial",
    area="Prometheus",
    users_see="one line with its warning: no load",
    stays="-",
    case="partial",
)
@pytest.mark.fault(
    "PM5",
    "JSON that unfolds to many values, or more than 2 MiB",
    area="Prometheus",
    users_see="an error that says so: no load",
    stays="memory",
    case="unfolds",
)
@pytest.mark.fault("PM5", case="large")
def test_an_answer_beyond_the_limits_or_in_part_is_an_error_that_says_so(body: object, why: str) -> None:
    with _prometheus(body) as (url, _), pytest.raises(TargetError, match=why):
        _firing(url)


@pytest.mark.fault(
    "PM11",
    "An error page of 4 MiB",
    area="Prometheus",
    users_see="its first words on one line",
    stays="-",
)
def test_a_long_refusal_is_cut() -> None:
    with _prometheus("x" * 2**22, 503) as (url, _), pytest.raises(TargetError, match="503") as raised:
        _firing(url)
    assert len(str(raised.value)) < 400


_BEGIN = head(200, "application/json") + b'{"data":'


def _forever(piece: bytes, first: bytes = b"") -> Callable[[Asked], Iterator[bytes | float]]:
    def script(_: Asked) -> Iterator[bytes | float]:
        yield first
        while True:
            yield piece
            yield 0.02

    return script


@pytest.mark.parametrize(
    "answer",
    [[HANG], [_BEGIN, HANG], _forever(b"x: y\r\n", _BEGIN[:20]), _forever(b" ", _BEGIN)],
    ids=["silent", "half", "endless head", "slow"],
)
@pytest.mark.fault(
    "PM6",
    "Prometheus is silent, stops in the middle, or sends an endless head",
    area="Prometheus",
    users_see="an error at the deadline",
    stays="-",
)
def test_the_whole_answer_has_one_deadline(answer: Any) -> None:
    limits = replace(queries._NOW, seconds=0.3)

    async def main() -> None:
        async with hostile(answer) as server:
            with pytest.raises(TargetError, match=r"no complete answer within 0\.3 s"):
                await connection(server.base_url)._ask(lambda asked: asked.custom_query("up"), list, limits)

    asyncio.run(main())


@pytest.mark.fault(
    "PM7",
    "The answer breaks off",
    area="Prometheus",
    users_see="an error: no load",
    stays="-",
)
def test_an_answer_that_breaks_off_is_an_error() -> None:
    async def main() -> None:
        async with hostile([head(200, "application/json", "content-length: 99") + b"{", CLOSE]) as server:
            with pytest.raises(TargetError, match="does not answer"):
                await connection(server.base_url).firing_pages("a")

    asyncio.run(main())


@pytest.mark.fault(
    "PM8",
    "The question is cancelled while Prometheus is silent",
    area="Prometheus",
    users_see="-",
    stays="thread and connection end at once",
)
def test_a_question_that_is_cancelled_ends_at_once_with_its_thread_and_its_connection() -> None:
    async def main() -> None:
        async with hostile([HANG]) as server:
            asking = asyncio.create_task(connection(server.base_url).firing_pages("a"))
            await server.until_asked()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await server.gone.wait()
            await asyncio.get_running_loop().shutdown_default_executor()

    before = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - before < 4.0, "not the five seconds of a question"


# The history of capacity.


def _series(name: str, values: Sequence[tuple[float, float]], **labels: str) -> dict[str, object]:
    metric = {"__name__": f"kneewatch_{name}", "target": "a", "instance": "x:9876", "mode": "verified", **labels}
    return {"metric": metric, "values": [[at_s, str(value)] for at_s, value in values]}


def _matrix(*series: dict[str, object]) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}


def _history(url: str, now_s: float = 4e7) -> list[CapacitySample]:
    return asyncio.run(connection(url).capacity_history("a", "chat", now_s))


# Two runs, at 3500 and at 9000, read once an hour; the second found no upper bound.
RUNS = (
    _series("capacity_requests_per_second", [(3600, 40), (7200, 40), (10800, 36)]),
    _series("capacity_requests_per_second_lower", [(3600, 38), (7200, 38), (10800, 36)]),
    _series("capacity_requests_per_second_upper", [(3600, 42), (7200, 42)]),
    _series("capacity_fingerprint", [(3600, 10), (7200, 10), (10800, 11)]),
    _series("capacity_last_success_timestamp_seconds", [(3600, 3500), (7200, 3500), (10800, 9000)]),
)


def test_each_run_of_the_history_is_one_figure_oldest_first() -> None:
    with _prometheus(_matrix(*RUNS)) as (url, queries):
        assert _history(url) == [
            CapacitySample(3500.0, 40.0, 38.0, 42.0, "verified", "00000000000a"),
            CapacitySample(9000.0, 36.0, 36.0, None, "verified", "00000000000b"),
        ]
    by_hour, *others = queries
    assert len(others) == 14, "a year in four weeks each, which Mimir and clouds allow, and the last eight days"
    assert set(others) == {by_hour}
    assert by_hour.startswith("/api/v1/query_range label_replace(kneewatch_capacity_")
    assert "__name__" not in by_hour, "Google's takes exact names only"
    assert by_hour.count('{target="a", workload="chat", mode!="forecast"}') == 6, "runs only"


def test_the_questions_about_runs_leave_no_time_out() -> None:
    asked = list(queries._spans(4e7, 0.0))
    by_hour = [(start_s, end_s) for start_s, end_s, step_s in asked if step_s == 3600]
    assert (by_hour[0][0], by_hour[-1][1]) == (4e7 - 365 * 86400, 4e7)
    assert [end_s for _, end_s in by_hour[:-1]] == [start_s for start_s, _ in by_hour[1:]]
    assert max(end_s - start_s for start_s, end_s, _ in asked) == 28 * 86400
    assert list(queries._spans(4e7, 4e7 - 60)) == [(4e7 - 60, 4e7, 3600), (4e7 - 60, 4e7, 120)]


@pytest.mark.fault(
    "PR9",
    "Two Kneewatches report one run",
    area="Prometheus",
    users_see="one sample",
    stays="-",
)
def test_one_run_reported_by_two_monitors_is_one_sample_and_a_forecast_without_load_none() -> None:
    again = [{**one, "metric": {**one["metric"], "instance": "y:9876"}} for one in RUNS]  # type: ignore[dict-item]
    forecast = [
        _series("capacity_requests_per_second", [(3600, 20)], mode="forecast"),
        _series("capacity_fingerprint", [(3600, 10)], mode="forecast"),
        _series("capacity_last_success_timestamp_seconds", [(3600, 3400)], mode="forecast"),
    ]
    with _prometheus(_matrix(*RUNS, *again, *forecast)) as (url, _):
        assert [(one.at_s, one.mode) for one in _history(url)] == [
            (3500.0, "verified"),
            (9000.0, "verified"),
        ]


@pytest.mark.fault(
    "PM10",
    "NaN or Inf in the history of capacity",
    area="Prometheus",
    users_see="-",
    stays="the other samples count",
)
def test_samples_that_are_no_numbers_are_left_out() -> None:
    lower, *others = [
        _series(name, [(3600, math.nan), (7200, math.inf)])
        for name in (
            "capacity_requests_per_second_lower",
            "capacity_requests_per_second",
            "capacity_last_success_timestamp_seconds",
        )
    ]
    with _prometheus(_matrix(RUNS[0], lower, *RUNS[2:])) as (url, _):
        assert [one.lower for one in _history(url)] == [None, None]
    with _prometheus(_matrix(*others)) as (url, _):
        assert _history(url) == []


def test_figures_from_before_there_was_a_fingerprint_are_no_history() -> None:
    with _prometheus(_matrix(*[one for one in RUNS if "fingerprint" not in str(one)])) as (url, _):
        assert _history(url) == []
    with _prometheus(_matrix()) as (url, _):
        assert _history(url) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        {},
        {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1"]}},
        _matrix({"metric": {}, "values": []}),
        _matrix({"metric": {"__name__": "x", "mode": "m"}, "values": [[1]]}),
        _matrix({"metric": {"__name__": "x", "mode": "m"}, "values": [[1, "word"]]}),
        _matrix(*RUNS[:3], _series("capacity_fingerprint", [(3600, 0.5)]), RUNS[4]),
    ],
    ids=["empty", "object", "scalar", "no name", "no value", "no number", "no fingerprint"],
)
@pytest.mark.fault(
    "PR6",
    "History with NaN, text or missing parts",
    area="Prometheus",
    users_see="one line",
    stays="no crash",
)
def test_a_history_that_is_none_is_an_error_and_no_crash(body: object) -> None:
    with _prometheus(body) as (url, _), pytest.raises(TargetError):
        _history(url)


# The history of a server's own metrics.


def _vllm(name: str, values: Sequence[tuple[float, float]], **labels: str) -> dict[str, object]:
    metric = {"__name__": f"vllm:{name}", "instance": "x:8000", "engine": "0", **labels}
    return {"metric": metric, "values": [[at_s, str(value)] for at_s, value in values]}


def _server(url: str, seconds: float = 600.0) -> list[ServerSnapshot]:
    return asyncio.run(connection(url).server_history('instance="x:8000"', 4e7, seconds))


RUNNING = _vllm("num_requests_running", [(3600, 4), (3615, 5)])


def test_a_server_s_history_is_queried_over_the_whole_time_and_sorted() -> None:
    with _prometheus(_matrix(RUNNING, _vllm("num_requests_waiting", [(3600, 0), (3615, 1)]))) as (url, queries):
        found = [(one.wall_s, one.running, one.waiting) for one in _server(url)]
    many = len(queries)  # this Prometheus answers each question with everything
    assert found == [(3600, 4 * many, 0), (3615, 5 * many, many)]
    assert all(asked.startswith("/api/v1/query_range label_replace(") for asked in queries)
    assert all('instance="x:8000"' in asked and "__name__" not in asked for asked in queries)


def test_nothing_remembered_is_nothing_read() -> None:
    with _prometheus(_matrix()) as (url, _):
        assert _server(url) == []


@pytest.mark.fault(
    "PR10",
    "The address of a selector matches two servers",
    area="Prometheus",
    users_see="one line that names the label to add",
    stays="no forecast of a mixture",
)
def test_two_servers_are_an_error_that_names_the_distinguishing_label() -> None:
    other = _vllm("num_requests_running", [(3600, 4)], instance="y:8000")
    with _prometheus(_matrix(RUNNING, other)) as (url, _):
        with pytest.raises(TargetError) as raised:
            _server(url)
        assert str(raised.value) == (
            f'{url}: several servers have vLLM series with instance="x:8000" (instance: x:8000, y:8000); narrow'
            " capacity.history to one of them"
        )
        assert raised.value.outcome is Outcome.BAD_REQUEST


@pytest.mark.parametrize(
    "body",
    ["", {}, {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1"]}}, _matrix({"metric": {}})],
    ids=["empty", "object", "scalar", "no values"],
)
@pytest.mark.fault("PR6")
def test_a_server_s_history_that_is_none_is_an_error_and_no_crash(body: object) -> None:
    with _prometheus(body) as (url, _), pytest.raises(TargetError):
        _server(url)
