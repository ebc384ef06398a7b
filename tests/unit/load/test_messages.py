"""Messages between controller and worker: a long one may take its time, silence may not."""

import asyncio
import pickle
import struct

import pytest

from probe.load.messages import Failed, receive

_SILENCE_S = 0.4


def _framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return struct.pack("!Q", len(data)) + data


@pytest.mark.slow
@pytest.mark.fault("R07d")
def test_a_long_message_that_comes_in_pieces_is_no_silence() -> None:
    """A report of a million tokens takes a busy worker seconds to send."""
    said = Failed("x" * 1000)

    async def main() -> object:
        reader = asyncio.StreamReader()
        receiving = asyncio.create_task(receive(reader, _SILENCE_S))
        data = _framed(said)
        for first in range(0, len(data), 100):
            reader.feed_data(data[first : first + 100])
            await asyncio.sleep(_SILENCE_S / 5)
        return await receiving

    assert asyncio.run(main()) == said


@pytest.mark.parametrize("sent", [0, 4, 20])
def test_nothing_for_a_while_is_silence(sent: int) -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(_framed(Failed("why"))[:sent])
        with pytest.raises(TimeoutError):
            await receive(reader, 0.05)

    asyncio.run(main())


@pytest.mark.parametrize("sent", [0, 4, 20])
def test_an_end_in_the_middle_is_the_end(sent: int) -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(_framed(Failed("why"))[:sent])
        reader.feed_eof()
        with pytest.raises(EOFError):
            await receive(reader, 5.0)

    asyncio.run(main())
