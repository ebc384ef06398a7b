"""Snapshots: their fields are those of the rows of server_values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from probe.core import server_values
from probe.core.server_values import BY_KEY, ENGINE_VALUES, VALUES, ValueKind
from probe.core.snapshot import TYPED, EngineSnapshot, ServerSnapshot, as_fields

_NOT_ON_A_PAGE = {"started_s"}


def test_each_number_of_a_snapshot_has_a_row_of_its_kind() -> None:
    types = get_type_hints(ServerSnapshot)
    numbers = {name for name, its in types.items() if its == float | None} - _NOT_ON_A_PAGE
    by_label = {name for name, its in types.items() if its == Mapping[str, float]} - {"others"}
    assert numbers <= {value.key for value in server_values.plain()}
    assert by_label <= {value.key for value in VALUES if value.label}
    assert numbers | by_label == TYPED
    assert {field.name for field in fields(EngineSnapshot)} == {value.key for value in ENGINE_VALUES}


def test_each_row_is_there_once_and_can_be_a_series() -> None:
    assert len(BY_KEY) == len(VALUES)
    for value in VALUES:
        assert bool(value.series) == bool(value.help), value.key
        assert value.series.endswith("_total") == (value.kind is ValueKind.COUNTER and bool(value.series)), value.key


def test_each_value_is_found_by_its_key() -> None:
    given = {value.key: float(number) for number, value in enumerate(server_values.plain())}
    found = ServerSnapshot(0, 0.0, **as_fields(given))
    assert {key: found.value(key) for key in given} == given
    assert ServerSnapshot(0, 0.0, **as_fields(dict.fromkeys(given))).value("corrupted") is None
