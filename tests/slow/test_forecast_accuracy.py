"""A forecast from live traffic against the capacity of the server it was of."""

import pytest
from simulated_servers import CHAT, FAST, WORDY, polled, profile, promise, twin_of, watched, workload

from probe.capacity.model.forecast import forecast
from probe.capacity.model.server_model import Hints
from probe.capacity.model.twin import find_capacity
from probe.mock_server.profiles import PROFILES
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer

SERVERS = {
    "fast": (profile(FAST), CHAT, promise(0.5, 0.03)),
    "low max_num_seqs": (profile(FAST, max_num_seqs=24), CHAT, promise(1.0, 0.1)),
    "wordy": (profile(WORDY, chunk=4096), workload(1200, 150, 0.4), promise(1.0, 0.1)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_at_six_tenths_of_the_load_a_forecast_is_within_a_tenth(name: str) -> None:
    known, asked, objectives = SERVERS[name]
    truth = find_capacity(twin_of(known, asked), objectives, 5.0, seeds=(7, 8), requests=3000)
    hints = Hints(known.max_num_seqs, known.max_num_batched_tokens)
    snapshots = watched(known, asked, 0.6 * truth, 400.0)
    found = forecast(snapshots, asked, objectives, hints, requests=400)
    assert found.mode == "forecast"
    assert found.output_tokens_per_second is not None
    assert found.requests_per_second == pytest.approx(truth, rel=0.1)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < truth < found.upper
    assert found.learnt_from is not None
    assert found.learnt_from[0] <= 0.6 * truth * 1.2
    assert found.learnt_from[1] == pytest.approx(0.6 * truth, rel=0.35)
    assert "experimental" in str(found.reason)


@pytest.mark.long
def test_snapshots_every_half_minute_give_the_same_forecast() -> None:
    """A server with few requests at a time, whose number changes between two scrapes by as much as it is."""
    known, asked = PROFILES["llama-8b"], workload(256, 64)
    snapshots = polled(VirtualServer(known, seed=3, users=BackgroundTraffic(3.0, asked)), 2400.0, 30.0)
    found = forecast(snapshots, asked, promise(0.5, 0.05), Hints(known.max_num_seqs), requests=400)
    assert found.requests_per_second == pytest.approx(5.5, rel=0.12), "by long runs: benchmarks/capacity/truth.json"
