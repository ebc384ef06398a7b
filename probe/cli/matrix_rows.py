"""The rows of the usual benchmark matrix for an LLM server: what `kneewatch matrix` measures, one after the other."""

from dataclasses import dataclass

USUAL_SECONDS = 300  # the usual budget of a run


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A row: a preset and its loads, `concurrency` or `rates`; neither: a search for the knee.

    `step_seconds`: of its fixed steps; None: the usual. `max_seconds`: its budget. `shows`: in a few words.
    """

    letter: str
    workload: str
    shows: str
    concurrency: str | None = None
    rates: str | None = None
    max_concurrency: int | None = None
    step_seconds: int | None = None
    max_seconds: int = USUAL_SECONDS

    @property
    def file(self) -> str:
        """Return the name of its result's file."""
        return f"{self.letter.lower()}-{self.workload}.json"

    @property
    def loads(self) -> str:
        """Return its loads in words."""
        if self.concurrency is not None:
            return f"{self.concurrency.replace(',', ', ')} in flight"
        limit = f", at most {self.max_concurrency} in flight" if self.max_concurrency is not None else ""
        return f"{self.rates} requests/s{limit}" if self.rates is not None else "a search for the knee"

    @property
    def options(self) -> str:
        """Return the options of `kneewatch ramp` that measure it."""
        given = {
            "--concurrency": self.concurrency,
            "--rates": self.rates,
            "--max-concurrency": self.max_concurrency,
            "--step-seconds": self.step_seconds,
            "--max-seconds": None if self.max_seconds == USUAL_SECONDS else self.max_seconds,
        }
        words = [f"{name} {value}" for name, value in given.items() if value is not None]
        return " ".join([f"--workload {self.workload}", *words])


COLD, WARM = "prefix-cold", "prefix-warm"
ROWS = (
    MatrixRow("A", "short-chat", "short chat", concurrency="1,2,4,8,16,32", max_seconds=600),
    MatrixRow("B", "long-prefill", "long prefill", concurrency="1,2,4,8,16", max_seconds=600),
    MatrixRow("C", "long-decode", "long decode", concurrency="4,8,16,32", step_seconds=60, max_seconds=900),
    MatrixRow("D", "mixed", "mixed saturation", concurrency="4,8,16,32", step_seconds=60, max_seconds=900),
    MatrixRow("E", COLD, "shared prefix, cold", rates="4", max_concurrency=16),
    MatrixRow("E", WARM, "shared prefix, warm", rates="4", max_concurrency=16),
    MatrixRow("F", "production", "production shape"),
)
LETTERS = tuple(dict.fromkeys(row.letter for row in ROWS))
