"""Whether readings are of one server, of its successor, or of several behind one address."""

from dataclasses import replace
from itertools import pairwise

import pytest
from plain_records import poll

from probe.core.snapshot import ServerSnapshot, changed_replicas
from probe.observe.restarts import BackendDetector, restarted
from probe.scrape.engines import parse

S = 10**9


def read(at_s: float, tokens: float, started_s: float | None = None) -> ServerSnapshot:
    return poll(at_ns=round(at_s * S), generation_tokens=tokens, started_s=started_s)


def several(*readings: ServerSnapshot) -> bool:
    detector = BackendDetector()
    pairs = pairwise(readings)
    return [detector.add(one, two, is_restart=restarted(one, two) is not None) for one, two in pairs][-1]


def test_a_process_that_began_at_another_time_is_another_one_whatever_its_counters_say() -> None:
    assert restarted(read(0, 10, 100.0), read(5, 20, 107.0)) == "its process began at another time, 7 s apart"
    assert restarted(read(0, 10, 100.0), read(5, 20, 100.0)) is None
    assert restarted(read(0, 10, None), read(5, 20, 100.0)) is None


def test_a_process_that_is_there_again_after_another_is_one_of_several() -> None:
    assert several(read(0, 10, 1.0), read(5, 20, 2.0), read(10, 12, 1.0))
    assert several(read(0, 10, 1.0), read(5, 20, 2.0), read(10, 30, 3.0), read(15, 12, 1.0))


def test_a_restart_or_a_rollout_is_not_several_servers() -> None:
    assert not several(read(0, 10, 1.0), read(5, 20, 2.0), read(10, 25, 2.0))
    assert not several(read(0, 1e6), read(5, 100.0), read(10, 5000.0), read(15, 9000.0))


def test_without_process_ids_counters_that_fall_twice_show_several_servers() -> None:
    flips = [read(5 * i, 1e6 + i if i % 2 == 0 else 1000.0 + i) for i in range(5)]
    assert several(*flips)
    assert not several(*flips[:3]), "once, a young server may have been busy"


def test_a_young_server_that_is_busy_is_not_several() -> None:
    assert not several(read(0, 11_000.0), read(5, 10.0), read(10, 12_000.0), read(15, 13_000.0))


def test_a_server_that_in_days_outgrows_its_predecessor_is_not_several() -> None:
    readings = [read(0, 20_000.0), read(5, 10.0), *(read(60 * i, 10.0 + 4000.0 * i) for i in range(1, 30))]
    assert not several(*readings)


def test_a_reading_without_the_processs_time_is_no_return() -> None:
    assert not several(read(0, 10, 1.0), read(5, 20, 2.0), read(10, 25, None), read(15, 30, 2.0))


@pytest.mark.parametrize(("at_s", "still"), [(500.0, True), (700.0, False)])
def test_it_is_held_so_for_ten_minutes(at_s: float, *, still: bool) -> None:
    flips = (read(0, 10, 1.0), read(5, 20, 2.0), read(10, 12, 1.0))
    assert several(*flips, read(at_s, 13, 1.0)) is still


# Replicas that are read together.


def both(at_s: float, one: ServerSnapshot, other: ServerSnapshot) -> ServerSnapshot:
    tokens = (one.generation_tokens or 0.0) + (other.generation_tokens or 0.0)
    return replace(read(at_s, tokens), replicas={"one:8000": one, "other:8000": other})


@pytest.mark.fault(
    "TR18",
    "Several servers behind one address whose pages are all configured (`metrics_urls`), and one of them "
    "restarts, cannot be read or is not listed",
    area="Truth",
    users_see="a restart, `server_unreadable` or `several_servers`, with the replica's address in the first two",
    stays="all pages together guard a run; user traffic is of all of them",
)
def test_a_replica_that_counts_from_zero_again_is_a_restart_though_the_sum_grows() -> None:
    before = both(0, read(0, 100.0), read(0, 50.0))
    after = both(5, read(5, 500.0), read(5, 2.0))
    assert before.generation_tokens < after.generation_tokens  # type: ignore[operator]
    assert restarted(before, after) == "other:8000: generation_tokens fell from 50 to 2"
    assert restarted(before, both(5, read(5, 500.0), read(5, 60.0))) is None


def test_a_replica_with_a_new_start_time_is_a_restart() -> None:
    before = both(0, read(0, 100.0, 7.0), read(0, 50.0, 9.0))
    after = both(5, read(5, 110.0, 7.0), read(5, 60.0, 11.0))
    assert restarted(before, after) == "other:8000: its process began at another time, 2 s apart"


def test_a_replica_s_address_that_is_a_balancer_s_is_several_servers() -> None:
    def balanced(at_s: float, *, is_other: bool) -> ServerSnapshot:
        replica = read(at_s, 50.0, 3.0 if is_other else 2.0)
        return replace(both(at_s, read(at_s, 100.0, 1.0), replica), started_s=replica.started_s)

    assert several(*(balanced(5.0 * i, is_other=i % 2 == 1) for i in range(3)))


def test_a_replica_that_came_or_went_is_named_and_no_process_that_was_replaced() -> None:
    two = both(0, read(0, 100.0), read(0, 50.0))
    three = replace(two, replicas={**two.replicas, "third:8000": read(5, 1e6)})
    moved = replace(two, replicas={"one:8000": read(5, 101.0), "third:8000": read(5, 3.0)})
    assert restarted(two, three) == "its replicas changed, third:8000 came"
    assert restarted(three, two) == "its replicas changed, third:8000 went"
    assert restarted(two, moved) == "its replicas changed, third:8000 came, other:8000 went"


def test_a_line_names_three_replicas() -> None:
    assert changed_replicas((), "abcde") == "a, b, c and 2 more came"
    assert changed_replicas("ba", "ab") == ""


def test_an_engine_of_a_page_that_counts_from_zero_again_is_a_restart_though_the_sum_grows() -> None:
    def page(*engines: tuple[str, int]) -> ServerSnapshot:
        text = "".join(
            f'vllm:num_requests_running{{engine="{name}"}} 1\n'
            f'vllm:generation_tokens_total{{engine="{name}"}} {tokens}\n'
            for name, tokens in engines
        )
        return parse(text, 0, 1.0)

    before = page(("0", 1000), ("1", 50))
    assert restarted(before, page(("0", 1100), ("1", 60))) is None
    assert restarted(before, page(("0", 1100), ("1", 60), ("2", 5))) is None, "a new one counts from zero"
    words = restarted(before, page(("0", 1100), ("1", 3)))
    assert words == "engine 1: generation_tokens fell from 50 to 3"
    assert restarted(before, page(("0", 1100), ("2", 3))) == "engine 1: it is gone"
