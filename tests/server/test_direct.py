"""Tokens go to the client without the event loop, as long as the client keeps up; and come whole and in order either way."""

import asyncio
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest

from cherenkov.testing import Pause
from cherenkov_server.direct import Direct
from cherenkov_server.stream import Stream
from tests.server.served import Served, events, request_text
from tests.server.test_crowd import unchunked

HEAD = b"\r\n\r\n"


def ask(connection, version="1.1"):
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    head = [("Connection", "close")]
    text = request_text("POST", "/v1/chat/completions", head, json.dumps(body).encode())
    connection.sendall(text.replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1))


def read(connection, most=None):
    found = b""
    while piece := connection.recv(most or 65536):
        found += piece
    return found


def said(body):
    *chunks, done = events(body.decode())
    assert done == "[DONE]"
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_tokens_come_while_the_loop_is_busy():
    begun, rest = threading.Event(), threading.Event()
    with Served(lambda request: ["a", Pause(60, begun), "bc", Pause(60, rest), "d"]) as server:
        with server.raw() as connection:
            ask(connection)
            found = b""
            while b'"a"' not in found:
                found += connection.recv(65536)
            server.until(lambda: next(iter(server.engine._jobs)).ticket._at_once)
            held, free = threading.Event(), threading.Event()
            server.loop.call_soon_threadsafe(lambda: (held.set(), free.wait(60)))
            assert held.wait(60)
            begun.set()
            while b'"c"' not in found:
                found += connection.recv(65536)
            free.set()
            rest.set()
            found += read(connection)
        assert said(unchunked(found.partition(HEAD)[2])) == "abcd"


def test_a_whole_answer_wakes_the_loop_for_its_ends_only(monkeypatch):
    begun = threading.Event()
    with Served(lambda request: ["a", Pause(60, begun), "b" * 200]) as server:
        woken, wake = [], server.loop.call_soon_threadsafe
        with server.raw() as connection:
            body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
            head = [("Connection", "close")]
            connection.sendall(request_text("POST", "/v1/chat/completions", head, body))
            server.until(lambda: [j for j in server.engine._jobs if j.ticket._at_once])
            monkeypatch.setattr(
                server.loop, "call_soon_threadsafe", lambda *given: woken.append(1) or wake(*given)
            )
            begun.set()
            assert b"b" * 200 in read(connection)
        assert len(woken) == 1


def test_a_client_that_does_not_keep_up_gets_all_in_order(monkeypatch):
    """The thread that answers finds the connection full, again and again, and the loop takes over."""
    sent, send = [], Direct.send
    monkeypatch.setattr(Direct, "send", lambda *given: sent.append(send(*given)) or sent[-1])
    words = "".join(f"{i} " for i in range(400))  # a chunk for each character
    with Served(words) as server:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            connection.connect(("127.0.0.1", server.port))
            ask(connection)
            server.until(lambda: False in sent)
            found = read(connection, 4000)
        assert said(unchunked(found.partition(HEAD)[2])) == words
        assert True in sent


def test_comments_do_not_come_between(monkeypatch):
    monkeypatch.setattr("cherenkov_server.routes.generation._QUIET_S", 0.001)

    def script(request):
        for _ in range(60):
            yield Pause(0.002)
            yield "ab"

    with Served(script) as server, server.raw() as connection:
        ask(connection)
        body = unchunked(read(connection).partition(HEAD)[2])
        assert b": still here\n\n" in body
        assert said(body) == "ab" * 60


def test_old_clients_get_no_chunks():
    with Served(lambda request: ["a", Pause(0.05), "b"]) as server, server.raw() as connection:
        ask(connection, version="1.0")
        head, _, body = read(connection).partition(HEAD)
        assert b"chunked" not in head
        assert said(body) == "ab"


def test_nothing_goes_past_a_comment_that_waits(pair):
    """The loop cannot write it yet; when it can, nobody else may be in the middle of a piece."""
    _, direct = pair
    free = []

    async def answer():
        waits, goes, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def send(message):
            if b"still here" in message.get("body", b""):
                waits.set()
                await goes.wait()
                gone.set()

        async def events(at_once):
            free.append(at_once() is not None)
            await waits.wait()
            free.append(at_once() is not None)
            goes.set()
            await gone.wait()
            await asyncio.sleep(0)
            free.append(at_once() is not None)
            for _ in ():
                yield

        work = SimpleNamespace(events=events, end=lambda: None)
        hang_up = SimpleNamespace(stop=lambda: None)
        stream = Stream(work, hang_up, None, last=bytes, headers={}, quiet_s=0.001)
        await stream({"http_version": "1.1", "state": {"direct": direct}}, None, send)

    asyncio.run(answer())
    assert free == [True, False, True]


class Transport:
    """A connection whose other end is at hand."""

    def __init__(self):
        self.mine, self.theirs = socket.socketpair()
        self.mine.setblocking(False)
        self.waiting, self.closing = b"", False
        self.later = []  # what its loop is to call

    def get_extra_info(self, name):
        assert name == "socket"
        return self.mine

    def get_write_buffer_size(self):
        return len(self.waiting)

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.waiting += data


@pytest.fixture
def pair():
    transport = Transport()
    loop = SimpleNamespace(call_soon_threadsafe=transport.later.append)
    yield transport, Direct(transport, loop)
    transport.mine.close()
    transport.theirs.close()


def test_only_while_it_is_open(pair):
    transport, direct = pair
    assert not direct.send(b"a")
    assert direct.open()
    assert direct.send(b"hello world")
    assert transport.theirs.recv(100) == b"b\r\nhello world\r\n"
    direct.hold()
    assert not direct.send(b"a")
    transport.waiting = b"of the loop"
    assert not direct.open()
    transport.waiting = b""
    assert direct.open()
    direct.lose()
    assert not direct.open()
    assert not direct.send(b"a")


@pytest.mark.parametrize("first_to_come", ["later", "hold", "open"])
def test_what_is_left_of_a_piece_is_the_loops_to_write_first(pair, first_to_come):
    transport, direct = pair
    assert direct.open()
    piece = os.urandom(8 << 20)
    assert direct.send(piece)
    assert not direct.send(b"next")
    (later,) = transport.later
    {"later": later, "hold": direct.hold, "open": direct.open}[first_to_come]()
    assert transport.waiting
    before = transport.waiting
    later()
    assert transport.waiting == before
    assert not direct.open()
    taken, first = b"", len(piece) - len(transport.waiting)
    while len(taken) < first:
        taken += transport.theirs.recv(1 << 20)
    assert taken + transport.waiting == b"800000\r\n" + piece + b"\r\n"


def test_a_connection_that_is_gone(pair):
    transport, direct = pair
    assert direct.open()
    transport.theirs.close()
    assert not direct.send(b"a")
    assert not direct.send(b"a")
    transport.closing = True
    assert not direct.open()
