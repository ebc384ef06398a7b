"""How `kneewatch doctor` examines a server. With a server: tests/integration/test_doctor.py."""

import asyncio

import pytest
from mock_servers import mock_server
from plain_records import poll, record

from probe.cli.doctor import _Examination, diagnose
from probe.cli.options import configuration
from probe.cli.parameters import ObjectiveOptions, ServerOptions
from probe.cli.server_commands import _status
from probe.core.clock import SystemClock
from probe.core.request import Outcome
from probe.report.diagnosis import Diagnosis, diagnosis_json, diagnosis_words


def test_a_forecast_that_takes_longer_than_the_command_says_so_and_what_measures_instead() -> None:
    config = configuration(None, "http://127.0.0.1:9", ServerOptions())

    async def run() -> Diagnosis:
        examination = _Examination(config, config.servers[0], SystemClock(), None)  # type: ignore[arg-type] - not read
        examination._records.append(record())
        for i in range(20):
            examination._server = poll(at_ns=i * 10**9)
            examination._state.add(examination._server)
        return await examination.result(30.0, 0.0)

    found = asyncio.run(run())
    why = "this machine has not computed it within the minute of this command; `kneewatch forecast` waits for it"
    assert f"Capacity:   unknown: {why}; `kneewatch ramp` measures it by guarded load" in diagnosis_words(found)
    assert diagnosis_json(found)["capacity"]["reason"] == why


class _Starved(SystemClock):
    """The clock of a machine on which this process waits for a processor all the time."""

    def waited_ns(self) -> int:
        return 1000 * self.monotonic_ns()


@pytest.mark.slow
@pytest.mark.fault(
    "CO65",
    "`doctor` on a machine that is too busy to judge a canary",
    area="Configuration",
    users_see="model, version, flags and findings; `Healthy: unknown`, status 2",
    stays="-",
)
def test_a_machine_too_busy_to_judge_the_canaries_still_says_what_it_found() -> None:
    async def run() -> Diagnosis:
        async with mock_server() as server:
            config = configuration(None, server.url, ServerOptions(), objectives=ObjectiveOptions(e2e="1ms"))
            target = config.servers[0]
            return await diagnose(config, target, _Starved(), watch_s=0.3, on_phase=lambda _: None)

    found = asyncio.run(run())
    assert {one.outcome for one in found.status.recent} == {Outcome.CLIENT_BOUND}
    words = diagnosis_words(found)
    assert "with vllm" in words
    assert "Healthy:    unknown: 0 of 3 canaries met every objective, and Kneewatch itself was too late" in words
    assert _status("objectives", found, has_problem=False) == _status("problems", found, has_problem=False) == 2
    assert (_status("problems", found, has_problem=True), _status("never", found, has_problem=True)) == (1, 0)
