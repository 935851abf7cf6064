"""Many streams at once, again and again: everybody reads their own words in order, and nothing grows."""

import asyncio
import json
import threading
from pathlib import Path

from tests.server.served import Served, events, request_text

CLIENTS = 16
ROUNDS = 4
LIMITS = {"limits__active_requests": 4, "limits__queued_requests": CLIENTS}


def words(name):
    return "".join(f"{name}.{i} " for i in range(10))


async def said_to(server, name):
    """What one stream says, read to its end."""
    body = json.dumps({"messages": [{"role": "user", "content": name}], "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_text("POST", "/v1/chat/completions", [("Connection", "close")], body))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    *chunks, done = events(unchunked(rest).decode())
    assert done == "[DONE]"
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def unchunked(body):
    """The bytes of a body that came in chunks."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        found, body = found + body[:length], body[length + 2 :]
    return found


async def crowd(server, number):
    names = [f"{number}-{i}" for i in range(CLIENTS)]
    said = await asyncio.gather(*(said_to(server, name) for name in names))
    assert said == [words(name) for name in names]


def figures():
    """Threads and descriptors of this process, which is the server's too."""
    open_files = Path("/proc/self/fd")
    return threading.active_count(), len(list(open_files.iterdir())) if open_files.is_dir() else 0


def test_a_crowd_of_streams_leaves_nothing_behind():
    with Served(lambda request: words(request.messages[-1]["content"]), **LIMITS) as server:
        asyncio.run(crowd(server, 0))  # what is made once is made now
        server.until(lambda: not server.engine.requests() and not server.service._groups)
        before = figures()
        for number in range(1, ROUNDS + 1):
            asyncio.run(crowd(server, number))
        server.until(lambda: not server.engine.requests() and not server.service._groups)
        server.until(lambda: figures() == before)
        found = server.engine.metrics()
        assert (found.active, found.queued) == (0, 0)
        assert found.completed == CLIENTS * (ROUNDS + 1)
