"""The report of a run: one file, closed to what is not in it, that says what the terminal says."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from example_fleet import run
from example_records import no_knee, result, step

from probe.core.provenance import Provenance
from probe.core.result import Capacity, CapacityResult, Stopped
from probe.core.snapshot import UserLoad
from probe.core.step import Arrivals, Distribution, GpuUse, ServerPeaks, StepPlan
from probe.report.html import report
from probe.report.result_text import result_lines
from probe.report.run_charts import charts, loads

EVIL = "</script><script>alert(1)</script>\"'>&{{7*7}}<!--"


class _Parts(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.text = ""
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._in = tag
            self.raw.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._in = "" if tag == self._in else self._in

    def handle_data(self, data: str) -> None:
        if self._in:
            self.raw[-1] = (self._in, self.raw[-1][1] + data)
        else:
            self.text += data

    @property
    def data(self) -> Any:
        return json.loads(self.raw[1][1])


def test_the_policy_runs_what_is_written_in_the_file_and_nothing_else() -> None:
    page = _Parts(report(run()))
    (policy,) = [a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv")]
    rules = {name: values for name, *values in (rule.split() for rule in str(policy).split(";"))}
    assert rules["default-src"] == ["'none'"]
    assert "unsafe" not in str(policy)
    style, _, *scripts = [text for _, text in page.raw]
    assert rules["style-src"] == [_digest(style)]
    assert rules["script-src"] == [_digest(text) for text in scripts]


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_nothing_comes_from_elsewhere() -> None:
    for tag, attributes in _Parts(report(run())).elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form", "a")
        assert not {"src", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]


def test_names_of_others_are_text() -> None:
    evil = run()
    context = replace(evil.context, engine=EVIL, version=EVIL, flags={EVIL: EVIL}, workload={"name": EVIL})
    steps = tuple(replace(one, valid=False, reason=EVIL) for one in evil.steps)
    made = replace(
        evil, target=EVIL, model=EVIL, context=context, steps=steps, stopped=Stopped("guard", EVIL), confirms=EVIL
    )
    page = _Parts(report(made))
    assert len(page.raw) == 4, "a style, the data and two scripts"
    assert page.text.count("<script>alert(1)</script>") >= 5
    assert "{{7*7}}" in page.text


@pytest.mark.parametrize(
    "made",
    [
        run(),
        result(),
        result(steps=[], capacity=no_knee("no step was valid")),
        result(steps=[step(4, reason="client_bound")], capacity=no_knee()),
        replace(result(), capacity=Capacity("verified", 12.5, 12.0, 13.0), users=UserLoad(2.5, 160.0)),
        replace(result(), context=replace(result().context, objectives={"odd": [1, 2]})),
    ],
)
def test_it_says_what_the_terminal_says(made: CapacityResult) -> None:
    page = _Parts(report(made))
    for name, words in result_lines(made):
        assert name in page.text
        assert words in page.text
    assert len(page.data["charts"]) == len(charts(made))
    assert len(re.findall(r"in flight", page.text)) >= len(made.steps)


def test_a_report_is_titled_with_the_target_unless_a_server_is_named() -> None:
    assert "<h1>Capacity of a</h1>" in report(result())
    named = report(result(), "llama<8b>:8000")
    assert "<h1>Capacity of llama&lt;8b&gt;:8000</h1>" in named
    assert "<title>Capacity of llama&lt;8b&gt;:8000, " in named


def test_where_no_objective_was_broken_the_charts_show_no_knee() -> None:
    lower_bound = Capacity(mode="empirical", requests_per_second=10.0, lower=10.0, knee_concurrency=4)
    drawn = charts(result(capacity=lower_bound, steps=(step(4), step(8))))
    assert {chart["knee"] for chart in drawn} == {None}
    assert drawn[0]["limit"]["name"] == "capacity, at least"
    assert {(chart["knee"], chart["kneeName"]) for chart in charts(result())} == {(4, "knee")}


def test_a_knee_that_only_the_model_knows_is_drawn_as_a_prediction() -> None:
    guess = Capacity(mode="verified", requests_per_second=12.5, lower=12.0, upper=13.0, limiting="ttft")
    passed = result(capacity=guess, steps=(step(4), step(8)), stopped=Stopped("done"))
    assert {chart["kneeName"] for chart in charts(passed)} == {"predicted knee"}


def test_the_rows_add_up_to_the_capacity_where_users_are_in_it() -> None:
    steps = (replace(step(4, rps=6.93), users=UserLoad(0.28, 18.0)), step(8, broken=("ttft",)))
    capacity = Capacity(mode="empirical", requests_per_second=7.21, lower=7.21, upper=9.0, knee_concurrency=4)
    page = report(result(capacity=capacity, steps=steps))
    assert "7.21 requests/s (7.21 to 9), of which 0.28 from users" in page
    assert '<th scope="col" class="num">users req/s</th>' in page
    assert '<td class="num">6.93</td><td class="num">0.28</td>' in page
    assert "users req/s" not in report(result())


def test_charts_are_over_what_is_in_flight_where_the_loop_was_closed() -> None:
    rates, ttft, tpot, kept, *_ = charts(run())
    assert rates["load"] == "requests in flight"
    assert rates["knee"] == 32
    assert rates["limit"] == {"name": "capacity", "value": 29.0}
    assert [point[0] for point in rates["series"][0]["points"]] == [4, 8, 16, 32, 64]
    assert ttft["limit"] == {"name": "objective", "value": 0.5}
    assert tpot["limit"] == {"name": "objective", "value": 0.05}
    assert [one["name"] for one in kept["series"]] == ["available", "TTFT", "TPOT"]
    assert kept["limit"] == {"name": "objective", "value": 0.95}
    assert loads(run().steps)[0] == "4 in flight"


def test_e2e_and_the_longest_gap_have_a_chart_where_they_are_promised() -> None:
    stored = {"e2e": {"ratio": 0.9, "within_s": 8.0}, "itl": {"ratio": 0.9, "within_s": 0.1}}
    made = run()
    promised = {**made.context.objectives, **stored}
    steps = [replace(one, stall_s=Distribution(count=9, p50=0.04, p95=0.09, p99=0.1)) for one in made.steps]
    drawn = charts(replace(made, steps=tuple(steps), context=replace(made.context, objectives=promised)))
    by_title = {chart["title"]: chart for chart in drawn}
    assert by_title["E2E"]["limit"] == {"name": "objective", "value": 8.0}
    longest = by_title["ITL, longest gap of a request"]
    assert longest["limit"] == {"name": "objective", "value": 0.1}
    assert {point[1] for point in longest["series"][1]["points"]} == {0.09}
    assert len(drawn) == len(charts(made)) + 2


def test_charts_are_over_the_rate_of_all_where_requests_came_by_themselves() -> None:
    steps = [
        replace(
            step(64, rps=rate), plan=StepPlan(64, 15.0, arrivals=Arrivals(rate_rps=rate)), users=UserLoad(2.0, 100.0)
        )
        for rate in (8.0, 4.0)
    ]
    made = replace(result(steps=steps), capacity=Capacity("verified", 9.0, 8.5, 9.6, limiting="ttft"))
    rates = charts(made)[0]
    assert rates["title"] == "Requests/s, including user traffic"
    assert rates["load"] == "requests/s"
    assert (rates["knee"], rates["bounds"]) == (9.0, [8.5, 9.6])
    assert [point[:2] for point in rates["series"][0]["points"]] == [[6.0, 6.0], [10.0, 10.0]], "by load"
    assert loads(made.steps) == ["10 req/s", "6 req/s"], "as they ran"


def test_steps_that_judge_nothing_are_marked() -> None:
    made = result(steps=[step(4), step(8, reason="client_bound")])
    assert [point[2] for point in charts(made)[0]["series"][0]["points"]] == [True, False]


def test_a_report_has_where_its_numbers_come_from_and_the_gpus_beside_each_level() -> None:
    busy = replace(
        step(4), gpu=GpuUse(utilization_peak=0.91, memory_peak=0.83), server=ServerPeaks(prefix_hit_ratio=0.42)
    )
    made = Provenance("0.1.0", "kneewatch ramp --seed 7", 7, "bench-1", {"driver": "<b>595"})
    page = report(replace(result(steps=[busy]), provenance=made))
    for words in (
        "prefix hits",
        "42 %",
        "GPU peak",
        "91 %",
        "GPU memory",
        "83 %",
        "kneewatch ramp --seed 7",
        "&lt;b&gt;595",
    ):
        assert words in page
    plain = report(result(steps=[step(4)]))
    assert not any(words in plain for words in ("prefix hits", "GPU peak", "GPU memory", "<dt>made by"))


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_number_that_is_not_finite_is_left_out_of_the_charts(number: float) -> None:
    broken = replace(step(4), throughput_rps=number, goodput_rps=number, ttft_s=Distribution(number))
    data = [text for tag, text in _Parts(report(result(capacity=no_knee(), steps=[broken]))).raw if tag == "script"]
    assert any('"charts":' in each and "null" in each for each in data)
