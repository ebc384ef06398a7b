"""Progress of a run: a row as each step ends, and a progress bar on a terminal.

Rows go to standard output. The bar is shown only on a terminal: standard output, or else standard error, so that rows
can be piped. Where neither is one, a line on standard error says every few seconds what the run does.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from probe.core.result import Phase
from probe.core.step import StepSummary
from probe.report.steps import PIPED_WIDTH, StepRows

_BAR_WIDTH = 24
_LINE_S = 10.0


@dataclass(frozen=True, slots=True)
class ProgressView:
    """The display of a run. `console` receives its rows, and its result after them."""

    console: Console
    _rows: StepRows
    _progress: Progress
    _bar: TaskID

    def step(self, step: StepSummary) -> None:
        """Print the row of a finished step."""
        self.console.print(self._rows.row(step))

    def phase(self, phase: Phase) -> None:
        """Show a new phase on the bar."""
        # rich keeps the total of the phase before for None.
        self._progress.reset(self._bar, total=phase.seconds or 0.0, description=phase.text)


@contextmanager
def following(*, on_stderr: bool = False, line_s: float = _LINE_S) -> Iterator[ProgressView]:
    """Show the progress of a run while the block runs, and then remove the bar.

    `on_stderr`: rows go to standard error, since standard output has a file. `line_s`: between two
    lines without a terminal.
    """
    on_terminal = (sys.stderr if on_stderr else sys.stdout).isatty()
    console = Console(stderr=on_stderr, width=None if on_terminal else PIPED_WIDTH, highlight=False)
    shown = console if on_terminal else Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), _Passed(), _Since())
    with Progress(*columns, console=shown, disable=not shown.is_terminal, transient=True) as progress:
        bar = progress.add_task("starting", total=None, begun_s=progress.get_time())
        view = ProgressView(console, StepRows(console.width), progress, bar)
        if shown.is_terminal:
            yield view
            return
        ended = threading.Event()
        threading.Thread(target=_print_lines, args=(progress.tasks[0], ended, line_s), daemon=True).start()
        try:
            yield view
        finally:
            ended.set()


def _print_lines(task: Task, ended: threading.Event, every_s: float) -> None:
    """Say on standard error what the run does, until it has ended."""
    with suppress(OSError, ValueError):  # nobody reads it any more
        while not ended.wait(every_s):
            passed = f"{task.elapsed or 0.0:.0f}"
            of = f" of {task.total:.0f}" if task.total else ""
            sys.stderr.write(f"{task.description}: {passed}{of} s\n")


class _Passed(ProgressColumn):
    """The elapsed share of the current phase; a pulse if its duration is unknown."""

    def render(self, task: Task) -> ProgressBar:
        passed_s = min(task.elapsed or 0.0, task.total) if task.total else 0.0
        return ProgressBar(
            total=task.total or None,
            completed=passed_s,
            width=_BAR_WIDTH,
            pulse=not task.total,
            animation_time=task.get_time(),
        )


class _Since(ProgressColumn):
    """The elapsed time of the run."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.get_time() - task.fields['begun_s']:.0f} s")
