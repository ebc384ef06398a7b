"""Decides which events of a stream carry tokens, and how many: by what they show, and by the server's count. Pure.

A usage says how many tokens there were up to its event. With one in each event, as vLLM sends it, the tokens of each
are known, text or not. The tokens between two usages are spread over the events between them; with a usage at the end
only, that is over all of them.

A token may have no text: a special token, or a part of a character. Without a usage, such an event is a token unless
the count that comes later has no room for it.
"""

from array import array
from bisect import bisect_left

from probe.client.api_json import ANSWER
from probe.core.request import TokenEvents

# What an event without text may be.
NO_TOKEN = 0  # it has no place for a token
COUNTED = 1  # a token if the usage grew with it alone: a role, an empty delta
EMPTY = 2  # an empty text: a token, unless the count has no room for it
LAST = 3  # it says why the answer ended: a token if the count has one left, and it took as long as one


class TokenCount:
    """The token events of one stream, in order of arrival."""

    __slots__ = (
        "_at_ns",
        "_counted",
        "_empty",
        "_first_answer",
        "_first_visible",
        "_last",
        "_late_ns",
        "_open",
        "_tokens",
        "_unplaced",
    )

    def __init__(self) -> None:
        self._at_ns, self._late_ns, self._tokens = array("q"), array("q"), array("i")
        self._first_visible: int | None = None
        self._first_answer: int | None = None
        self._open = 0  # the first event since the last usage
        self._counted = 0  # tokens before it
        self._empty: list[int] = []  # indices, from `_open` on, of events that may be none
        self._last: tuple[int, int] | None = None  # stamps of the event that says why the answer ended
        self._unplaced = 0

    def __len__(self) -> int:
        return len(self._at_ns)

    def add(self, at_ns: int, late_ns: int, shows: str, count: int | None, kind: int) -> None:
        """Take an event. `shows`: ANSWER, REASONING or ""; `count`: output tokens so far, by its usage."""
        index = len(self._at_ns)
        if shows and self._first_visible is None:
            self._first_visible = index
        if shows == ANSWER and self._first_answer is None:
            self._first_answer = index
        if count is None or count <= self._counted:
            self._add_uncounted(at_ns, late_ns, shows, kind, has_usage=count is not None)
        elif index == self._open and kind != NO_TOKEN and self._last is None:  # as with each event of vLLM
            self._append(at_ns, late_ns, count - self._counted)
            self._counted, self._open = count, index + 1
        else:
            if shows:
                self._append(at_ns, late_ns, 0)
            elif kind == LAST:
                self._last = at_ns, late_ns
            elif kind == EMPTY:
                self._empty.append(index)
                self._append(at_ns, late_ns, 0)
            self._settle(count)

    def _add_uncounted(self, at_ns: int, late_ns: int, shows: str, kind: int, *, has_usage: bool) -> None:
        """Take an event whose usage did not grow, or that has none."""
        if shows:
            self._append(at_ns, late_ns, int(not has_usage))
        elif kind == LAST:
            self._last = at_ns, late_ns
        elif kind == EMPTY and not has_usage:
            self._empty.append(len(self._at_ns))
            self._append(at_ns, late_ns, 0)

    def finish(self, count: int | None, most: int | None) -> TokenEvents:
        """Return the events. `count`: all output tokens, if the server said; `most`: as many as there can be."""
        if count is None:
            pending = self._counted + len(self._at_ns) - self._open
            self._settle(pending if most is None else max(min(pending, most), self._counted))
        else:
            self._settle(max(count, self._counted))
            if self._at_ns and count > self._counted:  # no event showed them
                self._tokens[-1] += count - self._counted
                self._unplaced += count - self._counted
        first_visible, first_answer = self._first_visible, self._first_answer
        return TokenEvents(self._at_ns, self._late_ns, self._tokens, first_visible, first_answer, self._unplaced)

    def _append(self, at_ns: int, late_ns: int, tokens: int) -> None:
        self._at_ns.append(at_ns)
        self._late_ns.append(late_ns)
        self._tokens.append(tokens)

    def _settle(self, count: int) -> None:
        """Give the events since the last usage their tokens. `count`: output tokens so far."""
        grown, first = count - self._counted, self._open
        if self._empty or self._last is not None:
            self._choose(grown)
        events = len(self._at_ns) - first
        if events == 0:
            return  # the tokens belong to later events
        least = sum(self._tokens[first:])  # one for each event with text and without a usage
        if grown > least:
            for i in range(events):
                self._tokens[first + i] = grown * (i + 1) // events - grown * i // events
            if first == 0 and events > 1:
                self._unplaced = max(grown - events, 0)
        self._counted += max(grown, least)
        self._open = len(self._at_ns)

    def _choose(self, grown: int) -> None:
        """Keep the events without text that are tokens: not more than the count has room for, and the latest."""
        first, empty, last = self._open, self._empty, self._last
        self._empty, self._last = [], None
        room = grown - (len(self._at_ns) - first - len(empty))
        self._drop(empty[: max(len(empty) - max(room, 0), 0)])
        if last is not None and room > len(empty) and self._takes_a_step(last[0]):
            self._append(*last, 0)

    def _drop(self, indices: list[int]) -> None:
        if not indices:
            return
        first, gone = self._open, set(indices)
        kept = [i for i in range(first, len(self._at_ns)) if i not in gone]
        for column in (self._at_ns, self._late_ns, self._tokens):
            column[first:] = array(column.typecode, [column[i] for i in kept])
        self._first_visible, self._first_answer = (
            None if at is None else at - bisect_left(indices, at) for at in (self._first_visible, self._first_answer)
        )

    def _takes_a_step(self, at_ns: int) -> bool:
        """Return whether an event is later than half a usual gap after the last one, so that it may be a token."""
        if not self._at_ns:
            return True
        last_ns, gaps = self._at_ns[-1], max(len(self._at_ns) - 1, 1)
        return at_ns - last_ns > (last_ns - self._at_ns[0]) / (2 * gaps)
