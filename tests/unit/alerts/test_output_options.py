import pytest

from alerts.alert_labels import AlertLabels
from alerts.output_options import (
    RulesFormat,
    alert_labels,
    check_address,
    check_uid_prefix,
    check_window_scale,
    prometheus_rule,
)
from alerts.rules import Manifest
from probe.core.errors import ConfigError

PLAIN, OPERATOR = RulesFormat.PROMETHEUS, RulesFormat.OPERATOR


@pytest.mark.fault(
    "CO41",
    "`--grafana`, `--runbooks` or `web_external_url` has braces, which Prometheus would read as a template",
    area="Configuration",
    users_see="one line, exit 2",
    stays="no rules that Prometheus refuses",
)
def test_runbooks_lie_under_an_address() -> None:
    example = "https://example.org/runbooks/"
    assert check_address("https://wiki.example/kneewatch", "--runbooks", example) == "https://wiki.example/kneewatch"
    # Prometheus takes two braces for a template, and refuses all rules for one that is none.
    for text in ("docs", "ftp://a", "https://a b", "https://a\nb", "https://a/{{", "https://a/{{.}}"):
        with pytest.raises(
            ConfigError, match=r"^--runbooks .*: expected an address such as https://example.org/[^\n]*$"
        ):
            check_address(text, "--runbooks", example)


@pytest.mark.fault("SE32")
def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    assert check_address("https://wiki/@team", "--runbooks", "") == "https://wiki/@team"
    for text in ("https://a:hidden@wiki/runbooks", "https://hidden@wiki"):
        with pytest.raises(ConfigError, match=r"^--grafana: expected an address without credentials") as caught:
            check_address(text, "--grafana", "")
        assert "hidden" not in str(caught.value)


def test_a_prefix_leaves_grafana_room_for_the_longest_identifier() -> None:
    assert check_uid_prefix("") == ""
    assert check_uid_prefix("Team_a-" + 15 * "x") == "Team_a-" + 15 * "x"
    for text in ("a/b", "a b", "ä", "a\n", 23 * "x"):
        with pytest.raises(ConfigError, match=r"^--uid-prefix [^\n]*: expected at most 22 of"):
            check_uid_prefix(text)


@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 120])
def test_a_scale_shortens(scale: float) -> None:
    assert check_window_scale(scale) == scale


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_other_scales_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"--window-scale .*: expected a number above 0 and at most 1"):
        check_window_scale(scale)


def test_the_operators_object_has_what_was_asked_for() -> None:
    labels = ["release=kube-prometheus-stack", "example.org/team=", "x=A.b_c-1"]
    manifest = prometheus_rule(OPERATOR, "monitoring", labels)
    assert manifest == Manifest(
        "monitoring", {"release": "kube-prometheus-stack", "example.org/team": "", "x": "A.b_c-1"}
    )
    assert prometheus_rule(OPERATOR, None, []) == Manifest()
    assert prometheus_rule(PLAIN, None, []) is None


@pytest.mark.parametrize("name", ["", "M", "a_b", "-a", "a-", "a.b", 64 * "a", "a\n"])
def test_a_namespace_is_one_of_kubernetes(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--namespace [^\n]*: expected at most 63 of"):
        prometheus_rule(OPERATOR, name, [])


@pytest.mark.parametrize(
    "label", ["", "a", "=b", "a=b c", "a=-b", "-a=b", "/a=b", "A.b/c=d", "a/b/c=d", f"a={64 * 'b'}", "a=b=c", "a=b\n"]
)
def test_a_label_is_one_of_kubernetes(label: str) -> None:
    with pytest.raises(ConfigError, match=r"^--label [^\n]*: expected key=value"):
        prometheus_rule(OPERATOR, None, [label])


def test_a_label_has_one_value() -> None:
    with pytest.raises(ConfigError, match="--label a=c: a is given twice"):
        prometheus_rule(OPERATOR, None, ["a=b", "a=c"])


@pytest.mark.parametrize(("namespace", "labels", "option"), [("a", [], "--namespace"), (None, ["a=b"], "--label")])
def test_a_plain_file_takes_nothing_of_an_object(namespace: str | None, labels: list[str], option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: goes with --format operator only"):
        prometheus_rule(PLAIN, namespace, labels)


def test_severities_get_a_sites_words_and_alerts_its_labels() -> None:
    labels = alert_labels(["page=critical", "ticket=warning"], ["team=ml", "note=a=b c"])
    assert labels == AlertLabels({"page": "critical", "ticket": "warning"}, {"team": "ml", "note": "a=b c"})
    written = labels.labels_for("page", {"objective": "ttft"})
    assert {key: written[key] for key in ("severity", "team", "objective")} == {
        "severity": "critical",
        "team": "ml",
        "objective": "ttft",
    }
    assert alert_labels([], []).labels_for("page", {})["severity"] == "page"


@pytest.mark.parametrize("text", ["", "page", "page=", "critical=page", "page={{ x }}", "page=a\n"])
def test_a_severity_is_one_of_the_rules(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--severity [^\n]*: expected page, ticket or none"):
        alert_labels([text], [])


@pytest.mark.parametrize("text", ["", "a", "a=", "1a=b", "a-b=c", "__a=b", "ä=b", "a={{ $value }}", "a=b\n"])
def test_a_label_of_an_alert_is_one_of_prometheus(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--alert-label [^\n]*: expected key=value"):
        alert_labels([], [text])


@pytest.mark.parametrize("text", ["severity=x", "target=x", "group=x"])
def test_a_label_of_the_rules_is_not_replaced(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--alert-label [^\n]*: \w+ is set by the rules"):
        alert_labels([], [text])


def test_each_option_sets_a_label_once() -> None:
    with pytest.raises(ConfigError, match="--severity page=b: page is given twice"):
        alert_labels(["page=a", "page=b"], [])
    with pytest.raises(ConfigError, match="--alert-label a=c: a is given twice"):
        alert_labels([], ["a=b", "a=c"])
