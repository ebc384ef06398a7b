"""What a newcomer sees first: the demo's capacity run ends before the demo does, and its result is printed."""

import re

import pytest
from kneewatch_command import kneewatch

pytestmark = [pytest.mark.long, pytest.mark.alone]


def test_the_demo_ends_with_the_result_of_a_whole_run() -> None:
    done = kneewatch("demo", "--port", "0", within_s=90.0)
    assert done.status == 0, done.err
    assert re.search(r"^Capacity: +[\d.]+ requests/s \(", done.out, re.MULTILINE), done.out
    assert re.search(r"^Ended by: +done ", done.out, re.MULTILINE), done.out
    last = [line.partition(":")[0] for line in done.out.strip().splitlines()[-3:]]
    assert last == ["Knee", "Capacity", "Limited by"], done.out
