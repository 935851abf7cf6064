"""The log: lines that find no room are counted."""

import logging
import queue

from cherenkov_server.log import _Entrance


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
