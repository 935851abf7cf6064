"""The log: lines that find no room are counted, and nobody else writes to stderr."""

import logging
import queue

from cherenkov_server.log import _Entrance, logging_to_stderr


def test_what_was_dropped_is_told():
    waiting = queue.Queue(3)
    entrance = _Entrance(waiting)
    for number in range(5):
        entrance.handle(logging.makeLogRecord({"msg": f"line {number}"}))
    kept = [waiting.get().getMessage() for _ in range(3)]
    entrance.handle(logging.makeLogRecord({"msg": "line 5"}))
    kept += [waiting.get().getMessage() for _ in range(2)]
    assert kept == [
        "line 0",
        "line 1",
        "line 2",
        "2 lines were dropped: nobody read them",
        "line 5",
    ]


def test_asyncio_does_not_warn_of_connections_that_are_gone(capfd):
    """With nobody to take them, its warnings would go to stderr from within the event loop, which may wait there."""
    with logging_to_stderr(as_json=False):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
        logging.getLogger("asyncio").error("no more descriptors")
    told = capfd.readouterr().err
    assert "socket.send()" not in told
    assert told.count("no more descriptors") == 1
