"""Progress of a ramp on a terminal; silent elsewhere. On standard error, so that results can be piped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from probe.records import StepSummary
from probe.report.terminal import print_step


@contextmanager
def ramp_progress(concurrency: Sequence[int]) -> Iterator[Callable[[StepSummary], None]]:
    """Gives the function to call as each step ends."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"concurrency {concurrency[0]}", total=len(concurrency))

        def step_ended(step: StepSummary) -> None:
            if console.is_terminal:
                print_step(progress.console, step)
            ended = concurrency.index(step.plan.concurrency) + 1
            description = f"concurrency {concurrency[ended]}" if ended < len(concurrency) else "done"
            progress.update(bar, completed=ended, description=description)

        yield step_ended
