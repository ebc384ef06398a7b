"""`kneewatch plan`: a plan for each result, as text, Markdown and JSON; and results that no plan may be made from."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_records import no_knee
from plan_command import CONTEXT, MEASURED, kneewatch_plan, plan_result, planned, refused, result_file

from probe.core.fitted_server import FittedServer
from probe.core.provenance import Provenance
from probe.core.result import Capacity, Stopped


def test_a_plan_says_how_many_replicas_of_which_workload_and_how_far_to_trust_it(tmp_path: Path) -> None:
    out = planned(tmp_path, plan_result())
    lines = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert (
        lines["Replicas"].strip()
        == "7 (6 + 1 spare), for the lower end of the capacity with 20 % of it free; 6 for its upper end"
    )
    assert lines["At the peak"].strip() == "57.1 % of the capacity in use; 66.7 % with 1 lost (74.1 % of its lower end)"
    assert "10 requests/s (90 % interval 9 to 11), 1,280 output tokens/s; verified" in lines["One replica"]
    assert "workload short-chat (256 + 128 tokens) only" in lines["Valid for"]
    assert "tensor_parallel_size=2 (pod)" in lines["Flags"]
    assert "from a version that did not record them" in lines["Not known"]


def test_a_workload_whose_lengths_vary_is_named_by_their_medians(tmp_path: Path) -> None:
    varying = {**CONTEXT.workload, "prompt_tokens": {"median": 400, "sigma": 0.5, "maximum": 2400}}
    out = planned(tmp_path, plan_result(context=replace(CONTEXT, workload=varying)))
    assert "workload short-chat (median 400 + 128 tokens) only" in out
    measured = {**CONTEXT.workload, "prompt_tokens": {"tokens": [1.0, 500.0], "shares": [0.0, 1.0]}}
    out = planned(tmp_path, plan_result(context=replace(CONTEXT, workload=measured)))
    assert "workload short-chat only" in out


def test_a_peak_of_tokens_is_one_of_requests_like_the_workloads(tmp_path: Path) -> None:
    out = planned(tmp_path, plan_result(), "--peak-output-tokens", "5120")
    assert "5,120 output tokens/s, which are 40 requests/s of this workload" in out
    assert "7 (6 + 1 spare)" in out


def test_the_cost_is_at_the_knee_and_at_the_peak_for_the_gpus_of_a_replica(tmp_path: Path) -> None:
    written = json.loads(planned(tmp_path, plan_result(), "--peak", "40", "--gpu-hour-price", "3.6", "--json"))
    assert written["schema"] == "kneewatch.plan/1"
    (plan,) = written["plans"]
    assert plan["cost"]["gpus"] == 2
    assert plan["cost"]["at_capacity"] == pytest.approx(0.002 / (1280 * 0.95) * 1e6)
    assert plan["cost"]["at_peak"] == pytest.approx(7 * 0.002 / (4 * 1280 * 0.95) * 1e6)
    assert (plan["replicas"]["count"], plan["workload"]["name"]) == (7, "short-chat")
    out = planned(tmp_path, plan_result(), "--peak", "40", "--gpu-hour-price", "3.6", "--gpus", "1")
    assert "0.822 per million good output tokens at the knee, 1.44 at the peak (1 GPU a replica at 3.6 an hour" in out
    nothing = replace(MEASURED, output_tokens_per_second=None)
    assert "unknown: the result has no output tokens/s" in planned(
        tmp_path, plan_result(capacity=nothing), "--peak", "40", "--gpu-hour-price", "1"
    )


def test_a_lower_bound_is_at_most_so_many_replicas(tmp_path: Path) -> None:
    out = planned(tmp_path, plan_result(capacity=Capacity("forecast", 10.0, lower=9.0, reason="a lower bound: x")))
    assert "at most 7 (6 + 1 spare): the capacity with 20 % of it free is a lower bound, so fewer may do" in out
    assert "lower bound, forecast: no load has verified it" in out
    assert "is unknown: the capacity is a lower bound; set capacity.server.max_num_seqs" in out


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        (replace(MEASURED, mode="empirical"), "this capacity is from load alone, without a model of the server"),
        (MEASURED, "the result is from a version that did not store its model; measure again"),
    ],
)
def test_a_setting_is_withheld_with_its_reason(tmp_path: Path, capacity: Capacity, words: str) -> None:
    out = planned(tmp_path, plan_result(capacity=capacity))
    assert f"The effect of other settings is unknown: {words}" in out


@pytest.mark.fault(
    "TP2",
    "A result file whose `fitted_server` no run can have written, such as one with a billion engines",
    area="Truth",
    users_see="each setting of the plan is withheld, with the reason",
    stays="the replicas",
)
def test_a_model_that_no_run_can_have_written_withholds_the_settings_only(tmp_path: Path) -> None:
    terms = {"host_s": 0.003, "per_sequence_s": 3e-5, "per_token_s": 4e-5}
    wrong = FittedServer(terms, (terms,) * 3, 4e5, 64, 2048, is_chunk_known=True, largest_batch=8.0, engines=10**9)
    out = planned(tmp_path, plan_result(capacity=replace(MEASURED, fitted_server=wrong)))
    assert "7 (6 + 1 spare)" in out
    assert "unknown: the result's fitted_server cannot be simulated (engines are not between 1 and 1024" in out


@pytest.mark.fault("SE34")
def test_a_decision_record_is_markdown_with_the_servers_settings(tmp_path: Path) -> None:
    hostile = plan_result(model="m | <script>alert(1)</script>")
    out = planned(tmp_path, hostile, "--peak", "40", "--markdown")
    assert out.startswith("# Replicas of m \\| &lt;script>alert(1)&lt;/script> for 40 requests/s\n")
    assert "**7 (6 + 1 spare), for the lower end of the capacity with 20 % of it free; 6 for its upper end.**" in out
    assert "| Flags | tensor_parallel_size=2 (pod) |" in out
    assert "<script>" not in out
    tables = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {3}


def test_a_decision_record_names_what_is_known_of_the_server_and_what_is_not(tmp_path: Path) -> None:
    facts = {"image": "vllm/vllm-openai:v0.32.0", "driver": "570.86"}
    one = plan_result(provenance=Provenance("0.1.0", "kneewatch ramp", 0, "bench-1", facts))
    out = planned(tmp_path, one, "--peak", "40", "--markdown")
    conditions = out.partition("## Conditions")[2]
    assert "| Facts | image vllm/vllm-openai:v0.32.0, driver 570.86 |" in conditions
    assert "| Not known | commit, node, CUDA," in conditions
    assert "| Made by | kneewatch 0.1.0 on bench-1, seed 0: kneewatch ramp |" in conditions
    (plan,) = json.loads(planned(tmp_path, one, "--peak", "40", "--json"))["plans"]
    assert plan["context"]["facts"] == facts


def test_several_results_are_planned_each_by_itself(tmp_path: Path) -> None:
    other = plan_result(context=replace(CONTEXT, workload={**CONTEXT.workload, "name": "long-prefill"}))
    files = [result_file(tmp_path, plan_result(), "a.json"), result_file(tmp_path, other, "b.json")]
    status, out, _ = kneewatch_plan(*files, "--peak", "40")
    assert status == 0
    assert out.count("Replicas:") == 2
    assert out.index("short-chat") < out.index("long-prefill")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"capacity": no_knee()}, "has no capacity (no step was valid: too_few_requests)"),
        ({"stopped": Stopped("interrupt", "signal")}, "the run did not end by itself: interrupt (signal)"),
        ({"stopped": Stopped("error")}, "the run did not end by itself: error"),
        ({"capacity": replace(MEASURED, lower=-1.0)}, "the lower end of its capacity is -1 requests/s"),
        ({"capacity": replace(MEASURED, upper=0.0)}, "the upper end of its capacity is 0 requests/s"),
        ({"capacity": replace(MEASURED, output_tokens_per_second=-1.0)}, "its capacity is -1 output tokens/s"),
    ],
)
@pytest.mark.fault(
    "TP1",
    "A plan from a run that was interrupted, failed or found no capacity",
    area="Truth",
    users_see="one line that says which",
    stays="no plan",
)
def test_a_result_that_shows_no_capacity_is_refused_in_one_line(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    file = result_file(tmp_path, plan_result(**values))
    line = refused(file, "--peak", "40")
    assert line.startswith(f"kneewatch: {file}: {words}")
    assert line.endswith("plan with the result of a run that ended by itself")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "expected one of --peak, --peak-output-tokens and --prometheus; give one of them"),
        (("--peak", "1", "--peak-output-tokens", "1"), "give one of them"),
        (("--peak", "0"), "--peak 0: expected a number above 0, per second"),
        (("--peak", "nan"), "--peak nan: expected a number above 0, per second"),
        (("--peak", "4", "--margin", "100%"), "--margin 100%: expected a share from 0% to below 100%"),
        (("--peak", "4", "--markdown", "--json"), "--markdown, --json: expected one of them; remove the other"),
        (("--peak", "4", "--prometheus", "http://127.0.0.1:9"), "and --prometheus; give one of them"),
        (("--prometheus", "prometheus:9090"), "expected an address such as http://prometheus:9090"),
        (("--prometheus", "http://a:hidden@127.0.0.1:9"), "--prometheus (hidden): expected an address such as"),
        (("--prometheus", "http://127.0.0.1:9?token=hidden"), "--prometheus http://127.0.0.1:9: expected an address"),
        (("--prometheus", "none.yml"), "none.yml"),
        (("--peak", "1e300"), "need more than a million replicas of 9 requests/s; check the peak (--peak)"),
        (("--peak", "4", "--gpu-hour-price", "inf"), "--gpu-hour-price inf: expected a number of at least 0"),
        (("--peak", "4", "--target", "a"), "--target: needs -c FILE or --prometheus URL; give one, or remove it"),
        (("--peak", "4", "-c", "x.yml"), "expected either result files, or -c FILE; give one of them"),
    ],
)
@pytest.mark.fault(
    "SE32",
    "The address in `plan --prometheus`, `alerts --grafana` or `--runbooks` has a password",
    area="Security",
    users_see="one line without it, exit 2",
    stays="no password in messages and rules",
)
@pytest.mark.fault("TP4")
def test_options_that_make_no_sense_are_one_line(tmp_path: Path, options: Sequence[str], words: str) -> None:
    line = refused(result_file(tmp_path, plan_result()), *options)
    assert words in line
    assert "hidden" not in line.replace("(hidden)", "")


def test_a_result_without_tokens_takes_no_peak_of_tokens(tmp_path: Path) -> None:
    file = result_file(tmp_path, plan_result(capacity=replace(MEASURED, output_tokens_per_second=None)))
    assert "has no output tokens/s; use --peak with requests/s" in refused(file, "--peak-output-tokens", "10")
