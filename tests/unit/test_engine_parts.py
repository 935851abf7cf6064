"""Parts of the engine that need no model: tickets, the line, the pace, sessions."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from cherenkov.chat.options import Settings
from cherenkov.chat.record import Record
from cherenkov.chat.replies import Finished, Reply, TextDelta, Usage
from cherenkov.errors import Cancelled, CapacityError, RequestError
from cherenkov.serving.line import Line
from cherenkov.serving.pacing import Pace
from cherenkov.serving.requests import Accepted, Started
from cherenkov.serving.sessions import Sessions
from cherenkov.serving.ticket import Ticket

REPLY = Reply("ab", "", (), "stop", Usage(1, 0, 2))
EVENTS = [Accepted(1), Started(1, 0), TextDelta("a"), TextDelta("b"), Finished(REPLY)]


def filled(**options):
    ticket = Ticket("x", **options)
    for event in EVENTS:
        ticket.put(event)
    return ticket


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


# --- tickets


def test_events_in_order():
    assert list(filled()) == EVENTS
    assert filled().reply() == REPLY
    ticket = filled()
    assert ticket.accepted() == EVENTS[0]
    assert ticket.started() == EVENTS[1]
    assert list(ticket) == EVENTS[2:]
    assert ticket.next() is None


def test_events_in_asyncio_from_a_thread():
    async def main():
        ticket = Ticket("x")
        threads = threading.active_count()

        def feed():
            for event in EVENTS:
                ticket.put(event)

        thread = threading.Timer(0.05, feed)
        thread.start()
        assert await ticket.aaccepted() == EVENTS[0]
        assert await ticket.astarted() == EVENTS[1]
        assert [event async for event in ticket] == EVENTS[2:]
        thread.join()
        assert threading.active_count() == threads
        assert await filled().areply() == REPLY
        gone = Ticket("y")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await gone.anext()
        gone.put(EVENTS[0])  # nobody waits any more
        assert await gone.anext() == EVENTS[0]

    asyncio.run(main())


def test_events_that_are_taken_at_once():
    """Those that wait come first, the last always comes to the reader, and so does all from a refusal on."""

    async def main():
        ticket, taken = Ticket("x"), []

        def take(event):
            taken.append(event)
            return event != EVENTS[3]

        ticket.put(EVENTS[0])
        assert await ticket.anext(take) == EVENTS[0]
        waiting = asyncio.ensure_future(ticket.anext(take))
        await asyncio.sleep(0)
        for event in EVENTS[1:4]:
            ticket.put(event)
        assert taken == EVENTS[1:4]
        ticket.put(EVENTS[2])  # behind the one that was refused
        assert await waiting == EVENTS[3]
        assert await ticket.anext(take) == EVENTS[2]
        waiting = asyncio.ensure_future(ticket.anext(take))
        await asyncio.sleep(0)
        ticket.put(EVENTS[2])
        assert not ticket.full_s
        ticket.put(EVENTS[4])
        assert await waiting == EVENTS[4]
        assert taken == [*EVENTS[1:4], EVENTS[2]]
        assert await ticket.anext(take) is None

    asyncio.run(main())


def test_an_event_for_a_loop_that_is_closed():
    ticket = Ticket("x")

    async def leave():
        task = asyncio.ensure_future(ticket.anext())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    ticket.put(EVENTS[0])
    assert ticket.next() == EVENTS[0]


def test_an_error_is_the_last():
    ticket = Ticket("x")
    ticket.put(EVENTS[0])
    ticket.fail(Cancelled("gone"))
    ticket.fail(ValueError())
    assert ticket.next() == EVENTS[0]
    for _ in range(2):
        with pytest.raises(Cancelled):
            ticket.next()
    with pytest.raises(TimeoutError):
        Ticket("y").next(0.01)


def test_cancelled_or_complete_but_never_both():
    changes = []
    ticket = Ticket("x", on_change=lambda: changes.append(1))
    assert ticket.cancel()
    assert ticket.cancel()
    assert ticket.is_cancelled
    assert not ticket.complete()
    other = Ticket("y")
    assert other.complete()
    assert not other.cancel()
    assert not other.is_cancelled
    assert changes == [1, 1]


def test_a_full_ticket():
    changes = []
    ticket = filled(most_unread=4, on_change=lambda: changes.append(1))
    assert ticket.full_s > 0
    ticket.next()
    ticket.next()
    assert ticket.full_s > 0
    assert not changes
    ticket.next()
    assert ticket.full_s == 0
    assert changes == [1]


# --- the line


def job(size, name=""):
    return SimpleNamespace(ready=SimpleNamespace(size_bytes=size), refused_since=None, name=name)


def line_of(jobs, clock=None, **options):
    line = Line(
        **{"lanes": 2, "limit_bytes": 10, "patience_s": 5} | options, clock=clock or Clock()
    )
    for one in jobs:
        line.add(one)
    return line


def nobody(_job):
    return False


def test_first_come_first_served():
    a, b = job(3), job(3)
    line = line_of([a, b])
    assert line.next(2, 0, nobody) is None
    assert line.next(1, 0, nobody) is a
    assert line.next(1, 0, nobody) is b
    assert line.next(1, 0, nobody) is None
    assert len(line) == 0


def test_small_ones_go_before_for_a_while():
    clock = Clock()
    large, small, smaller = job(9), job(2), job(1)
    line = line_of([large, small, smaller], clock)
    assert line.next(1, 4, nobody) is small
    clock.now = 4.9
    assert line.next(1, 4, nobody) is smaller
    line.add(small)
    clock.now = 5.1
    assert line.next(1, 4, nobody) is None
    assert line.next(0, 0, nobody) is large
    assert line.next(0, 0, nobody) is small


def test_who_is_held_is_passed():
    a, b = job(3), job(2)
    line = line_of([a, b])
    assert line.next(0, 0, lambda one: one is a) is b
    assert line.next(0, 0, lambda one: one is a) is None
    line.remove(a)
    assert list(line) == []


# --- the pace


def test_alone_and_in_company():
    pace = Pace(2048, 2.0)
    assert pace.tokens(in_company=False) == 2048
    assert pace.tokens(in_company=True) == 128
    pace.note(128, 0.5)
    assert pace.tokens(in_company=True) == 256  # not at once to where it would be
    pace.note(100, 10.0)  # not full: says little
    assert pace.tokens(in_company=True) == 256
    pace.note(256, 4.0)
    assert pace.tokens(in_company=True) == 128
    pace.note(128, 64.0)
    assert pace.tokens(in_company=True) == 128
    for _ in range(9):
        pace.note(pace.tokens(in_company=True), 0.01)
    assert pace.tokens(in_company=True) == 2048


def test_no_pace():
    assert Pace(512, 0).tokens(in_company=True) == 512
    assert Pace(50, 2.0).tokens(in_company=True) == 50


# --- sessions


def record(words="hello"):
    return Record.begin(system=words, tools=None, settings=Settings(), overflow="error")


def sessions(clock=None, **options):
    return Sessions(
        **{"most": 2, "history_bytes": 1000, "idle_s": 10} | options, clock=clock or Clock()
    )


def test_a_session_of_another_owner_is_not_there():
    kept = sessions()
    one = kept.open("a", record())
    assert kept.info(one.id, "a").owner == "a"
    for call in (kept.info, kept.close, lambda i, o: kept.claim(i, o, Ticket("x"))):
        with pytest.raises(RequestError) as error:
            call(one.id, "b")
        assert error.value.code == "session_not_found"


def test_one_turn_at_a_time():
    kept = sessions()
    one = kept.open("", record())
    turn = kept.claim(one.id, "", Ticket("x"))
    with pytest.raises(RequestError) as error:
        kept.claim(one.id, "", Ticket("y"))
    assert error.value.code == "busy"
    kept.release(turn)
    assert kept.info(one.id, "").turns == 0
    turn = kept.claim(one.id, "", Ticket("y"))
    kept.reserve(turn, record("other"))
    kept.commit(turn, record("other"))
    kept.release(turn)
    info = kept.info(one.id, "")
    assert (info.turns, info.busy) == (1, False)


def test_a_turn_that_ended_twice_leaves_the_next_one_alone():
    kept = sessions()
    one = kept.open("a", record())
    first = kept.claim(one.id, "a", Ticket("first"))
    kept.release(first)
    kept.claim(one.id, "a", Ticket("second"))
    kept.release(first)
    with pytest.raises(RequestError, match="busy with request second"):
        kept.claim(one.id, "a", Ticket("third"))


def test_closing_cancels():
    kept, ticket = sessions(), Ticket("x")
    one = kept.open("", record())
    turn = kept.claim(one.id, "", ticket)
    kept.close(one.id, "")
    assert ticket.is_cancelled
    kept.release(turn)
    assert kept.figures() == (0, 0)


def test_too_many_and_too_old():
    clock = Clock()
    kept = sessions(clock)
    a, b = kept.open("", record()), kept.open("", record())
    turn = kept.claim(a.id, "", Ticket("x"))
    c = kept.open("", record())  # b was idle
    with pytest.raises(RequestError):
        kept.info(b.id, "")
    kept.claim(c.id, "", Ticket("y"))
    with pytest.raises(CapacityError) as error:
        kept.open("", record())
    assert error.value.retry_after_s
    clock.now = 100  # busy ones stay
    kept.release(turn)
    assert kept.info(a.id, "").idle_s == 0
    clock.now = 111
    with pytest.raises(RequestError):
        kept.info(a.id, "")
    assert kept.figures()[0] == 1
    with pytest.raises(CapacityError) as error:
        sessions(most=0).open("", record())
    assert error.value.retry_after_s is None


def test_history_is_bounded():
    kept = sessions()
    a, b = kept.open("", record("a" * 400)), kept.open("", record("b" * 400))
    turn = kept.claim(b.id, "", Ticket("x"))
    kept.reserve(turn, record("b" * 700))  # a goes
    with pytest.raises(RequestError):
        kept.info(a.id, "")
    with pytest.raises(CapacityError) as error:
        kept.reserve(turn, record("b" * 1100))
    assert error.value.asked_bytes > error.value.available_bytes == 1000
    assert kept.info(b.id, "").history_bytes < 450
