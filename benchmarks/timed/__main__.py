"""Kneewatch's capacity of real vLLM servers of known timing: `PYTHONPATH=tests/integration python -m benchmarks.timed`.

    [CASE ...]                      of cases.py, its mixtures too; else the ten
    --vllm-python .vllm/bin/python  the Python of `make vllm`
    --only ramp|users|forecast      a search started cold, one beside live users at 20 % of the truth, or forecasts from
                                    150 s of live traffic
    --shares 0.3,0.55,0.75          that traffic, as shares of the truth
    --out FILE                      the record; benchmarks/results/timed-DATE.json

Users send Poisson traffic, of lengths spread by up to 40 % to each side where the case has fixed ones. The truth is
that of truth.json (truth.py). Needs two cores and nothing else on the machine. Prints a line for each answer and writes
all of them as JSON. Exits 1 if a wrong capacity was called verified.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.capacity.cold import sweep_tokens
from benchmarks.capacity.timed_cases import timed_case
from benchmarks.timed.cases import ALL, CASES, Case
from benchmarks.timed.served import Answer, configuration, forecast, ramp, served, stranger_s, users
from probe import __version__
from probe.core.objectives import ALL as ALL_MET
from probe.core.objectives import met

TRUTH = Path(__file__).with_name("truth.json")
RESULTS = Path(__file__).parents[1] / "results"
KINDS = ("ramp", "users", "forecast")
_LIVE_SHARE = 0.2
_FORECAST_S, _SETTLE_S, _LIVE_S = 150.0, 5.0, 900.0
_WRONG = 0.10


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer beside the truth (requests/s)."""

    case: str
    kind: str
    truth_rps: float
    answer: Answer

    @property
    def error(self) -> float | None:
        """Relative error, or None without a capacity."""
        found = self.answer.capacity.get("requests_per_second")
        return None if found is None else found / self.truth_rps - 1

    @property
    def is_held(self) -> bool:
        """Whether the interval contains the truth."""
        lower, upper = self.answer.capacity.get("lower"), self.answer.capacity.get("upper")
        return (lower or 0.0) <= self.truth_rps <= (upper if upper is not None else float("inf"))

    @property
    def is_wrongly_verified(self) -> bool:
        """Whether it is called verified and is not right."""
        return self.answer.capacity["mode"] == "verified" and (self.error is None or abs(self.error) > _WRONG)

    @property
    def tokens_of_sweep(self) -> float:
        """Tokens sent, over those of a sweep of ten steps of 60 s up to 120 % of the truth."""
        return self.answer.tokens / sweep_tokens(timed_case(self.case).workload, self.truth_rps)

    def __str__(self) -> str:
        said, answer = self.answer.capacity, self.answer
        error = "none" if self.error is None else f"{self.error:+.1%}"
        return (
            f"{self.case:14} {self.kind:12} truth {self.truth_rps:6.2f}  {error:>7} {said['mode']:9}"
            f" [{said['lower']}, {said['upper']}] {'held' if self.is_held else 'NOT held'}; {answer.took_s:.0f} s,"
            f" {answer.tokens:,} tokens ({self.tokens_of_sweep:.0%} of a sweep), {answer.over_objective_s:.1f} s over,"
            f" {answer.spoilt} of {answer.users} users' requests spoilt;"
            f" {answer.stopped}; {said['reason'] or ''}\n{'':8}{' '.join(answer.steps)}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--vllm-python", default=".vllm/bin/python")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--shares", default="0.3,0.55,0.75")
    parser.add_argument("--out", type=Path, default=RESULTS / f"timed-{datetime.now(UTC):%Y-%m-%d}.json")
    options = parser.parse_args()
    truth = json.loads(TRUTH.read_text())
    missing = [name for name in options.cases if name not in truth]
    if missing:
        parser.error(f"{TRUTH.name} has no truth of {', '.join(missing)}; see benchmarks/timed/truth.py")
    judged: list[Judged] = []
    shares = [float(share) for share in options.shares.split(",")]
    kinds = (options.only,) if options.only else KINDS
    for name in options.cases:
        for one in _judge(ALL[name], truth[name]["requests_per_second"], options.vllm_python, kinds, shares):
            print(one, flush=True)
            judged.append(one)
            _write(judged, options.out)
    return int(any(one.is_wrongly_verified for one in judged))


def _judge(
    case: Case, truth_rps: float, vllm_python: str, kinds: Sequence[str], shares: Sequence[float]
) -> Iterator[Judged]:
    """Yield the answers of each kind, each from a server started anew."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as scratch, served(case, vllm_python, Path(scratch)) as base_url:
            config = configuration(case, base_url, Path(scratch))
            if kind == "ramp":
                yield Judged(case.name, kind, truth_rps, ramp(config, Path(scratch)))
            elif kind == "users":
                live_rps = _LIVE_SHARE * truth_rps
                yield Judged(case.name, kind, truth_rps, asyncio.run(_beside(case, base_url, live_rps, config)))
            else:
                for share in shares:
                    answer = asyncio.run(_forecast(case, base_url, share * truth_rps, config))
                    yield Judged(case.name, f"forecast {share:.0%}", truth_rps, answer)


async def _beside(case: Case, base_url: str, live_rps: float, config: Path) -> Answer:
    async with users(stranger_s(case), base_url, live_rps, _LIVE_S) as records:
        await asyncio.sleep(_SETTLE_S)
        answer = await asyncio.to_thread(ramp, config, config.parent)
    objectives = timed_case(case.name).objectives
    verdicts = [verdict for record in records if (verdict := met(record, objectives))]
    return replace(answer, users=len(verdicts), spoilt=sum(not verdict[ALL_MET] for verdict in verdicts))


async def _forecast(case: Case, base_url: str, live_rps: float, config: Path) -> Answer:
    async with users(stranger_s(case), base_url, live_rps, _LIVE_S):
        await asyncio.sleep(_SETTLE_S)
        return await asyncio.to_thread(forecast, config, _FORECAST_S)


def _write(judged: list[Judged], out: Path) -> None:
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": " ".join(["python -m benchmarks.timed", *sys.argv[1:]]),
        "kneewatch": __version__,
        "python": platform.python_version(),
        "answers": [
            {**asdict(one), "error": one.error, "is_held": one.is_held, "tokens_of_sweep": one.tokens_of_sweep}
            for one in judged
        ],
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
