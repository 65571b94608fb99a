"""Connections of which nothing comes are counted, and those that call are not."""

import asyncio
import threading

import pytest

from fedpace.devices.server import SilentConnections


def test_says_how_many_connections_made_no_call(caplog: pytest.LogCaptureFixture) -> None:
    async def told() -> None:
        callers = SilentConnections(asyncio.get_running_loop(), 0.05)
        for called in (0, 2, 1):  # whoever calls in time is not counted, also later
            for _ in range(3):
                thread = threading.Thread(target=callers.note_connection)
                thread.start()
                thread.join()
            await asyncio.sleep(0)  # they are known now
            for _ in range(called):
                callers.note_call()
            lines = len(caplog.records)
            async with asyncio.timeout(30):
                while len(caplog.records) == lines:
                    await asyncio.sleep(0.01)

    asyncio.run(told())
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [f"connections without a call: {count}" for count in (3, 1, 2)]


def test_a_call_on_a_connection_that_was_given_up_counts_for_nothing() -> None:
    async def calls() -> None:
        callers = SilentConnections(asyncio.get_running_loop(), 0.05)
        callers.note_call()
        callers.note_connection()
        await asyncio.sleep(0)
        assert callers._latest == 1

    asyncio.run(calls())


def test_a_connection_to_a_server_that_has_closed_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    SilentConnections(loop, 1.0).note_connection()
