"""Several kinds of canaries of one target: what each of them is, and what they may cost a day."""

from typing import Any

import yaml

from probe.config.config import Config
from probe.config.config_file import config_from, show
from probe.monitor.wiring import endpoint

KINDS: list[dict[str, Any]] = [
    {"every": "15s"},
    {"every": "2m", "workload": "long-prefill", "headers": {"x-tenant": "b", "x-route": "c"}},
    {"every": "1m", "model": "sql", "known_answer": {"prompt": "1 + 1 =", "expect": "2", "max_tokens": 3}},
]


def _config(**target: Any) -> Config:
    plain = {"name": "a", "base_url": "http://a:1", "headers": {"x-tenant": "a"}}
    return config_from({"targets": [{**plain, **target}]}, "test")


def test_each_kind_is_the_target_with_that_canary_alone() -> None:
    target = _config(model="llama", canaries=KINDS).servers[0]
    kinds = target.kinds
    assert [(kind.canary.every, kind.canary.workload, kind.model) for kind in kinds] == [
        (15.0, "default", "llama"),
        (120.0, "long-prefill", "llama"),
        (60.0, "default", "sql"),
    ]
    assert [endpoint(kind).plain_headers for kind in kinds] == [
        {"x-tenant": "a"},
        {"x-tenant": "b", "x-route": "c"},
        {"x-tenant": "a"},
    ]
    assert endpoint(target).plain_headers == {"x-tenant": "a"}, "the metrics page is the target's, not a kind's"
    assert {(kind.name, kind.base_url, kind.objectives) for kind in kinds} == {("a", "http://a:1", "default")}
    assert all(kind.kinds == (kind,) for kind in kinds)


def test_a_single_canary_is_a_list_of_one() -> None:
    target = _config(canary={"every": "7s"}).servers[0]
    assert target.kinds == (target,)


def test_the_kinds_of_a_template_are_those_of_its_targets() -> None:
    found = {"dns": {"name": "pods.serving", "port": 8000}}
    config = config_from({"targets": [{"name": "pods", "discover": found, "canaries": KINDS}]}, "test")
    target = config.templates[0].target("one", "http://10.0.0.1:8000")
    assert [kind.model for kind in target.kinds] == ["auto", "auto", "sql"]


def test_what_is_shown_of_several_kinds_can_be_loaded_again() -> None:
    for canaries in ({}, {"canary": {"every": "7s"}}, {"canaries": KINDS}):
        config = _config(**canaries)
        (shown,) = yaml.safe_load(show(config))["targets"]
        assert [key for key in ("canary", "canaries") if key in shown] == (list(canaries) or ["canary"])
        assert config_from(yaml.safe_load(show(config)), "test") == config


def test_the_kinds_share_the_budget_of_a_day() -> None:
    # 256 + 128 tokens every 15 s, 2048 + 128 every 2 min, and 256 + 128 with 7 + 3 for the question every minute.
    need = 5760 * 384 + 720 * 2176 + 1440 * (384 + 10)
    assert _config(canaries=KINDS, canary_tokens_per_day=need).servers[0].canary_tokens_per_day == need


def test_the_longest_lengths_count() -> None:
    lengths = {"prompt_tokens": {"lognormal": {"median": 10, "sigma": 1.0, "max": 90}}, "output_tokens": 10}
    raw = {
        "workloads": {"varied": lengths},
        "targets": [
            {"name": "a", "base_url": "http://a:1", "canary": {"every": "1m", "workload": "varied"}},
        ],
    }
    config = config_from(raw, "test")
    canary = config.servers[0].canary
    assert canary.most_tokens_per_day(config.workload("varied")) == 1440 * 100


def test_a_passive_target_spends_nothing() -> None:
    assert _config(canaries=KINDS, canary_tokens_per_day=1, passive=True).servers[0].passive
