"""README's commands, on the mock server that it names: each does what the page says, and prints what it shows."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kneewatch_command import kneewatch
from monitor import Monitor, Sim
from process import eventually

from probe.capacity.model.bottleneck import BOTTLENECKS

pytestmark = [pytest.mark.long, pytest.mark.alone]

README = (Path(__file__).parents[2] / "README.md").read_text()
SERVER = "http://llama-8b:8000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    assert "kneewatch sim --profile tiny --port 8000" in README
    with Sim(tmp_path_factory.mktemp("sim"), "tiny") as sim:
        yield sim.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def command(beginning: str, server: str) -> list[str]:
    """Return README's command with this beginning, for the server here."""
    every = re.findall(r"`kneewatch ([^`]+)`|^kneewatch (.*?)(?: +#.*)?$", README, re.MULTILINE)
    (line,) = {line for line in map("".join, every) if line.startswith(beginning)}
    return shlex.split(line.replace(SERVER, server).replace("http://127.0.0.1:8000", server))


def test_doctor(server: str) -> None:
    done = kneewatch(*command("doctor   http", server), within_s=120)
    assert done.status == 0, done.err
    assert {"Server", "Healthy", "Flags"} <= {line.partition(":")[0] for line in done.out.splitlines()}


def test_check(server: str) -> None:
    assert kneewatch(*command("check", server), within_s=60).status == 0


def test_ramp_prints_what_the_page_shows(server: str, folder: Path) -> None:
    """The figures are those of another run: capacities agree within their intervals, as far as they are printed."""
    ramp = command("ramp http://127.0.0.1:8000", server)
    done = kneewatch(*ramp, "-o", folder / "result.json", within_s=400)
    assert done.status == 0, done.err
    (shown,) = re.findall(r"```\n(Knee: .*?)```", README, re.DOTALL)
    heads = [line.partition(":")[0] for line in shown.splitlines()]
    printed = {line.partition(":")[0]: line for line in done.out.splitlines()}
    assert set(heads) <= printed.keys()
    low, high = map(float, re.findall(r"90 % interval ([\d.]+) to ([\d.]+)", shown)[0])
    capacity = json.loads((folder / "result.json").read_text())["capacity"]
    assert capacity["lower"] <= high
    assert capacity["upper"] is None or capacity["upper"] >= low
    # Which one it is depends on how fast this machine was; tests/slow/test_bottlenecks.py has which one is right.
    gain = re.fullmatch(r"Bottleneck: +(\w+): capacity would be [\d.]+ % higher with.*", printed["Bottleneck"])
    assert gain, printed["Bottleneck"]
    assert gain[1] in BOTTLENECKS


def test_compare_and_plan_read_its_result(server: str, folder: Path) -> None:
    result = folder / "result.json"
    if not result.exists():  # this test alone
        test_ramp_prints_what_the_page_shows(server, folder)
    compare = [str(result) if word.endswith(".json") else word for word in command("compare", server)]
    assert kneewatch(*compare, within_s=60).status == 0
    plan = [str(result) if word.endswith(".json") else word for word in command("plan", server)]
    done = kneewatch(*plan, within_s=120)
    assert done.status == 0, done.err
    assert "Replicas:" in done.out


def test_forecast_of_a_server_without_users_says_what_is_missing(server: str) -> None:
    done = kneewatch(*command("forecast", server), within_s=200)
    assert done.status == 1, done.err
    assert done.out == "No forecast: not enough evidence: the server had almost no traffic.\n"


def test_the_configuration_is_run_and_has_rules_and_dashboards(server: str, folder: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    config = yaml.safe_load(text.replace(SERVER, server))
    (folder / "kneewatch.yml").write_text(text)
    for what in ("alerts", "dashboards"):
        words = [str(folder / word) if word.endswith((".yml", "/")) else word for word in command(what, server)]
        assert kneewatch(*words, within_s=60).status == 0
    assert list((folder / "rules").glob("*.yml"))
    names = re.findall(r"for Grafana: (.*)$", README, re.MULTILINE)[0].split(", ")
    titles = {json.loads(file.read_text())["title"] for file in (folder / "dashboards").glob("*.json")}
    assert all(any(name in title for title in titles) for name in names)
    with Monitor(config, folder / "run") as monitor:
        eventually(lambda: "kneewatch_target_up{" in monitor.page("/metrics"), within_s=60, what="a canary")
