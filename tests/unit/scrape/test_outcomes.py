"""What became of requests, by each engine's counters: ok, failed, aborted, or not known."""

from pathlib import Path

import pytest

from probe.scrape import engines

PAGES = Path(__file__).parents[2] / "pages"
RECORDED = Path(__file__).parents[2] / "golden/vllm-0.32/metrics.txt"


@pytest.mark.parametrize(
    ("page", "outcomes", "http_errors"),
    [
        # Two ended with an error and 19 were rejected: as many as were answered with status 5xx.
        ("vllm.prom", {"ok": 4402 + 367 + 4136 + 341, "failed": 2 + 19, "aborted": 41 + 32}, 21),
        ("vllm-0.8-v0.prom", {"ok": 4445 + 367}, None),
        ("vllm-0.8-v1.prom", {"ok": 4402 + 367, "aborted": 43}, None),
        ("vllm-api-servers.prom", {"ok": 160 + 16 + 200 + 20, "aborted": 0}, None),
        # Neither what was not valid nor, from SGLang, any failure: it does not count them.
        ("tgi.prom", {"ok": 1467, "failed": 21 + 2 + 1, "aborted": 3}, None),
        ("trtllm.prom", {"ok": 1402 + 388, "failed": 0}, None),
        ("triton.prom", {"ok": 912, "failed": 4}, None),
        ("dynamo.prom", {"ok": 62, "failed": 0, "aborted": 0}, None),
        ("llamacpp.prom", {}, None),
    ],
)
def test_an_engines_counters_say_what_became_of_requests(
    page: str, outcomes: dict[str, float], http_errors: float | None
) -> None:
    found = engines.parse((PAGES / page).read_text(), 0, 0.0)
    assert found.outcomes == outcomes
    assert found.http_errors == http_errors


def test_a_gateway_knows_the_status_of_every_answer() -> None:
    found = engines.parse((PAGES / "litellm.prom").read_text(), 0, 0.0)
    assert found.outcomes["ok"] == 2415
    assert found.outcomes["failed"] == sum(
        count for code, count in found.finished.items() if code == "429" or code.startswith("5")
    )


def test_sglang_does_not_count_failures() -> None:
    found = engines.parse((PAGES / "sglang.prom").read_text(), 0, 0.0)
    assert found.outcomes.keys() == {"ok", "aborted"}


HTTP = """\
http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 100.0
http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 7.0
http_requests_total{handler="/v1/chat/completions",method="POST",status="5xx"} 3.0
http_requests_total{handler="/v1/responses",method="POST",status="5xx"} 1.0
http_requests_total{handler="/generate",method="POST",status="5xx"} 1.0
http_requests_total{handler="/v1/load_lora_adapter",method="POST",status="5xx"} 10.0
http_requests_total{handler="/v1/models",method="GET",status="5xx"} 20.0
http_requests_total{handler="/tokenize",method="POST",status="5xx"} 40.0
http_requests_total{handler="none",method="POST",status="4xx"} 80.0
"""


def test_only_answers_to_generating_requests_are_users_errors() -> None:
    assert engines.parse(RECORDED.read_text() + HTTP, 0, 0.0).http_errors == 5


def test_without_an_answer_so_far_errors_are_not_known_and_without_an_error_they_are_zero() -> None:
    page = "vllm:num_requests_running 0\n"
    assert engines.parse(page, 0, 0.0).http_errors is None
    assert engines.parse(page + HTTP.splitlines()[0] + "\n", 0, 0.0).http_errors == 0


def test_rejected_requests_have_failed_though_they_reached_no_engine() -> None:
    page = """\
vllm:num_requests_running 0
vllm:request_success_total{finished_reason="stop"} 10
vllm:request_success_total{finished_reason="error"} 1
vllm:admission_rejections_total{reason="max_num_queued_reqs"} 4
vllm:admission_rejections_total{reason="max_num_queued_tokens"} 2
"""
    assert engines.parse(page, 0, 0.0).outcomes == {"ok": 10, "failed": 7}
