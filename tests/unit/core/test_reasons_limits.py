"""The numbers in the texts of reasons are those of the checks."""

import pytest

from probe.capacity.run import admission, run_guard
from probe.core import burn_rate, reasons
from probe.core.reasons import Reason
from probe.load import messages
from probe.observe import guard, restarts, server_state, stream_guard, user_mix
from probe.runtime import helper_process

LIMITS = guard.GuardLimits()
_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 10: "ten", 20: "twenty", 0.25: "a quarter"}
_TIMES = {2: "twice", 4: "four times"}
_OVER = _TIMES[LIMITS.over_objective]
_OWN = (f"of {guard._OWN_REQUESTS} or more", f"at least {_WORDS[guard.OWN_COUNTED_S]} seconds")


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (
            reasons.SERVER_UNREADABLE,
            (f"{_WORDS[LIMITS.missed_polls]} scrapes in a row",),
        ),
        (reasons.OTHER_SERVER, (*_OWN, f"less than one in {_WORDS[round(1 / guard._OWN_SHARE)]}")),
        (reasons.SEVERAL_SERVERS, (*_OWN, "less than three in four", "n + 1/2 in n + 1")),
        (reasons.PREEMPTIONS, (f"{_WORDS[LIMITS.preemptions]} requests were preempted",)),
        (
            reasons.QUEUE,
            (f"{_WORDS[LIMITS.waiting_polls]} scrapes in a row", f"more than {LIMITS.waiting:g} requests waited"),
        ),
        (
            reasons.KV_CACHE,
            (
                f"above {LIMITS.kv_cache_usage * 100:g} %",
                f"in {_WORDS[LIMITS.kv_polls]} of the last {_WORDS[LIMITS.kv_window]} scrapes",
            ),
        ),
        (reasons.BUSY, (f"more than {LIMITS.kv_cache_usage * 100:g} % full",)),
        (
            reasons.NO_FIRST_TOKEN,
            (
                f"{_WORDS[LIMITS.unanswered]} probe requests",
                f"more than {_OVER} the TTFT objective",
                f"{_TIMES[2 * LIMITS.over_objective]} it and {_WORDS[LIMITS.hang_s]} seconds",
            ),
        ),
        (
            reasons.USERS_LATENCY,
            (
                f"last {_WORDS[LIMITS.latency_polls]} scrapes",
                f"{_WORDS[LIMITS.slow_first_tokens]} or more first tokens",
                f"{_TIMES[LIMITS.worse_than_before]} the share",
                f"more than {_OVER} the TTFT objective",
                f"of {LIMITS.itl_samples:g} or more",
                f"over {_OVER} the TPOT objective",
            ),
        ),
        (
            reasons.SLOW_ANSWERS,
            (
                f"{_WORDS[stream_guard._SLOW]} of the last {_WORDS[stream_guard._RECENT]} answers",
                f"more than {_OVER} an objective",
            ),
        ),
        (reasons.SLOW_UNLOADED, (f"median of {_WORDS[stream_guard.UNLOADED_REQUESTS]} requests",)),
        (reasons.WORKER_LOST, (f"silent for {messages.WORKER_LOST_S:g} s",)),
        (
            reasons.CLIENT_LATE,
            (
                f"more than {run_guard._OLD_S:g} s late",
                f"for more than {_WORDS[int(run_guard._TOO_LONG_OLD_S)]} seconds",
            ),
        ),
        (reasons.HELPER_ERROR, (f"took {_WORDS[helper_process._SECONDS / 60]} minutes",)),
        (reasons.BUDGET_SPENT, (f"less than {_WORDS[admission._USEFUL_SHARE]} of tokens_per_run",)),
        (reasons.REFUSED_SEVERAL_SERVERS, (f"last {_WORDS[restarts._FOR_NS / 60e9]} minutes",)),
        (reasons.ROLLOUT, (f"last {_WORDS[admission._ROLLOUT_S / 60]} minutes",)),
        (reasons.BURN_RATE, (f"at least {_WORDS[burn_rate._MIN_BAD]} bad ones",)),
        (
            reasons.LIVE_LOAD,
            (
                f"last {_WORDS[server_state.WINDOW_NS / 60e9]} minutes",
                f"more than {admission.MAX_LIVE_SHARE * 100:g} %",
            ),
        ),
        (reasons.NO_USER_LENGTHS, (f"fewer than {user_mix.MIN_REQUESTS} requests",)),
    ],
    ids=lambda one: one.word if isinstance(one, Reason) else "",
)
def test_a_reason_s_numbers_are_those_of_its_check(row: Reason, texts: tuple[str, ...]) -> None:
    said = row.condition or row.why
    for text in texts:
        assert text in said
