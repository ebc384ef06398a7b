"""How `kneewatch doctor` examines a server. With a server: tests/integration/test_doctor.py."""

import asyncio

from plain_records import poll, record

from probe.cli.doctor import _Examination
from probe.cli.options import configuration
from probe.cli.parameters import ServerOptions
from probe.core.clock import SystemClock
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
