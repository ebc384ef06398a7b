"""Each bullet and each row of README beside the tests that run what it claims.

Its commands are run by integration/test_readme_commands.py.
"""

import re
from pathlib import Path

from probe.config.config_file import config_from

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
OF_OTHERS = "what other programs do: docs/evidence/comparison.md has the source of each cell"

# How the bullet or row begins, and the tests below tests/ that run what it claims.
CLAIMS: dict[str, tuple[str, ...] | str] = {
    "**Alert when users suffer.**": (
        "integration/test_cli_load.py::test_check_judges_whole_answers_and_the_longest_gap",
        "integration/test_alerts_arrive.py::test_each_fault_fires_and_resolves_its_own_alerts_and_no_others",
    ),
    "**Know why.**": (
        "integration/test_real_vllm.py::test_probe_traffic_is_distinguished_from_user_traffic",
        "integration/test_real_vllm.py::test_gpus_stand_beside_the_server_under_their_own_names",
        "unit/alerts/test_alert_rows.py::test_every_runbook_belongs_to_an_alert",
        "unit/docs/test_runbook_commands.py::test_the_command_line_takes_every_command_of_a_runbook",
    ),
    "**Know the limit, safely.**": (
        "integration/test_readme_commands.py::test_forecast_of_a_server_without_users_says_what_is_missing",
        "unit/capacity/run/test_runner.py::test_a_run_ends_with_its_budget_of_tokens",
        "faults/test_load.py::test_a_server_that_misbehaves_under_load_gets_no_more",
    ),
    "**Capacity**": ("integration/test_readme_commands.py::test_ramp_prints_what_the_page_shows",),
    "**Limited by**": ("slow/test_bottlenecks.py::test_the_bottleneck_that_a_server_was_built_with_is_named",),
    "**Error bound**": ("faults/test_starvation.py::test_the_error_bound_covers_what_a_busy_core_added",),
    "on a laptop": ("deploy/test_compose.py::test_docker_compose_accepts_the_file",),
    "beside the servers": (
        "deploy/test_kustomize.py::test_a_kustomization_is_the_chart",
        "integration/test_discovery_run.py::test_pods_come_and_go_and_a_cluster_that_forbids_it_takes_none_away",
    ),
    "in vLLM's pod": ("deploy/test_helm_sidecar.py::test_a_parent_charts_deployment_is_the_kustomizations",),
    "many servers": ("deploy/test_helm.py::test_a_fleet_has_as_many_shards_as_pods_and_a_volume_for_each",),
    "one capacity run": ("deploy/test_helm_jobs.py::test_a_run_is_asked_for_once_and_ends_before_its_deadline",),
    "Kneewatch | yes": (
        "integration/test_agreement.py::test_median_latencies_agree",
        "integration/test_ramp_search.py::test_the_search_ends_with_a_figure_or_with_a_reason",
        "integration/test_from_nothing.py::test_three_commands_lead_to_a_page",
    ),
    "guidellm": OF_OTHERS,
    "`vllm bench`": OF_OTHERS,
    "Dynamo's Planner": OF_OTHERS,
    "blackbox_exporter": OF_OTHERS,
    "vLLM's own `/metrics`": OF_OTHERS,
    "On a GPU it has run": (
        "slow/test_recorded_servers.py::test_a_forecast_from_the_metrics_of_an_h100_is_near_its_knee",
        "integration/test_real_vllm.py::test_an_address_alone_is_enough_for_a_canary",
    ),
    "A search and a forecast can be wrong": (
        "slow/test_search_faults.py::test_a_budget_that_ends_before_the_knee_leaves_a_forecast_and_never_a_verified_figure",
    ),
    "A capacity run is load": (
        "unit/docs/test_readme_claims.py::test_no_capacity_run_is_scheduled_unless_a_target_asks_for_it",
    ),
    "Load behind a load balancer": (
        "integration/test_nginx.py::test_without_the_page_of_each_server_behind_nginx_nothing_is_sent",
        "integration/test_nginx.py::test_two_servers_behind_nginx_are_measured_as_one_by_the_pages_of_both",
    ),
    "Other engines": ("unit/scrape/test_engines.py::test_each_page_is_recognised_by_its_names",),
}


def test_every_claim_has_a_test_that_runs_it() -> None:
    lines = re.findall(r"^(?:- |\| )(?![-| ]|deploy \||\[sources)(.*)", README, re.MULTILINE)
    assert len(lines) > 15
    assert [line for line in lines if not any(line.startswith(begins) for begins in CLAIMS)] == []
    assert [begins for begins in CLAIMS if not any(line.startswith(begins) for line in lines)] == []


def test_the_tests_of_the_claims_exist() -> None:
    named = [test for tests in CLAIMS.values() if tests != OF_OTHERS for test in tests]
    missing = []
    for test in named:
        file, _, name = test.partition("::")
        if not re.search(rf"def {name}\b", (ROOT / "tests" / file).read_text()):
            missing.append(test)
    assert missing == []


def test_no_capacity_run_is_scheduled_unless_a_target_asks_for_it() -> None:
    (target,) = config_from({"targets": [{"name": "a", "base_url": "http://127.0.0.1:9"}]}, "test").targets
    assert target.capacity.mode == "forecast", "which adds no load"
