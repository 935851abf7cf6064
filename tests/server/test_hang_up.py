"""Callers who go away, never finish what they say, or never read; and how a server goes down."""

import asyncio
import json
import socket
import threading
import time

import pytest

from cherenkov.engine import Limits
from cherenkov.testing import Pause, ScriptedModel
from tests.server.served import Served, events, refused, request_text

WAIT = {"messages": [{"role": "user", "content": "wait"}]}


def waits(request):
    words = request.messages[-1]["content"]
    if words == "wait":
        return ["ab", Pause(60), "cd"]
    return ["x" * 20_000] if words == "long" else "ok"


def asks(stream, **more):
    body = json.dumps(WAIT | {"stream": stream} | more).encode()
    return request_text("POST", "/v1/chat/completions", body=body)


def is_idle(server):
    return not server.engine.requests() and not server.service._groups


@pytest.fixture
def server():
    with Served(waits, limits__active_requests=2) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_ends_an_answer_under_way(server, stream):
    with server.raw() as connection:
        connection.sendall(asks(stream))
        server.until(lambda: [r for r in server.engine.requests() if r.output_tokens == 2])
    server.until(lambda: is_idle(server))
    assert server.chat("hi").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_ends_a_request_that_waits(server, stream):
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    for connection in held:
        connection.sendall(asks(stream))
    server.until(lambda: server.engine.metrics().active == 2)
    with server.raw() as connection:
        connection.sendall(asks(stream, request_id="late"))
        server.until(lambda: server.engine.metrics().queued == 1)
    server.until(lambda: server.engine.metrics().queued == 0)
    assert server.engine.metrics().active == 2
    for connection in held:
        connection.close()
    server.until(lambda: is_idle(server))


def test_hanging_up_ends_every_choice(server):
    with server.raw() as connection:
        connection.sendall(asks(stream=True, n=4))
        server.until(lambda: server.engine.metrics().active == 2)
    server.until(lambda: is_idle(server))


def test_a_reset_counts_as_hanging_up(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(asks(stream=True))
    server.until(server.engine.requests)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    server.until(lambda: is_idle(server))


def test_the_cancelling_itself_never_waits():
    """Whatever runs when a stream is torn down is finished before anything could be awaited."""
    from cherenkov_server.work import HangUp

    cancelled = []

    async def receive():
        return {"type": "http.disconnect"}

    async def check():
        hang_up = HangUp(receive, lambda: cancelled.append(True))
        task = hang_up._task
        await asyncio.sleep(0)
        assert cancelled
        hang_up.stop()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(check())


def test_two_hundred_who_hang_up_and_one_who_is_served():
    limits = {"limits__queued_requests": 512, "limits__active_requests": 4}
    with Served(waits, **limits) as server:
        held = []
        for i in range(200):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(asks(stream=i % 2 == 0))
            held.append(connection)
        server.until(lambda: len(server.engine.requests()) > 100)
        for connection in held:
            connection.close()
        answer = server.chat("hi")
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        server.until(lambda: is_idle(server))
        server.until(lambda: server.service.traffic.active == 0)
        assert len(asyncio_tasks(server)) <= 3


def asyncio_tasks(server):
    return asyncio.all_tasks(server.loop)


def test_who_never_reads_is_dropped_and_holds_up_nobody():
    engine = ScriptedModel(waits, limits=Limits(max_batch=4, stall_s=60))
    with Served(engine, limits__write_seconds=1.0) as server:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            body = {"messages": [{"role": "user", "content": "long"}], "stream": True}
            connection.sendall(
                request_text("POST", "/v1/chat/completions", body=json.dumps(body).encode())
            )
            server.until(server.engine.requests)
            for _ in range(5):
                assert server.chat("hi").status_code == 200
            # The connection is cut although its client is still there, and its answer with it.
            server.until(lambda: is_idle(server))


def test_half_open_connections_are_closed_and_hold_up_nobody():
    with Served("ok", limits__header_seconds=1.0, limits__connections=300) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(500)]
        for connection in silent[::2]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert server.chat("hi").status_code == 200
        connections = server.running._server.server_state.connections
        server.until(lambda: len(connections) <= 300)
        server.until(lambda: len(connections) <= 1)
        for connection in silent:
            connection.close()


def test_a_drip_of_headers_does_not_help():
    with Served("ok", limits__header_seconds=0.5) as server, server.raw() as connection:
        dropped = threading.Event()
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for i in range(100):
            try:
                connection.sendall(f"X-{i}: 1\r\n".encode())
            except OSError:
                dropped.set()
                break
            time.sleep(0.05)
        assert dropped.is_set()


def test_a_body_that_never_ends_is_refused():
    with Served("ok", limits__body_seconds=0.3) as server, server.raw() as connection:
        head = request_text(
            "POST",
            "/v1/chat/completions",
            [("Content-Type", "application/json"), ("Content-Length", "100")],
        )
        connection.sendall(head + b'{"mess')
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
        assert b" 408 " in found.splitlines()[0]
        assert b"request_timeout" in found


def test_idle_connections_are_closed():
    with Served("ok", limits__idle_seconds=1.0) as server, server.raw() as connection:
        connection.sendall(request_text("GET", "/health"))
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
        assert found.endswith(b'{"status":"ok"}')


def test_several_requests_on_one_connection(server):
    with server.raw() as connection:
        one = request_text("GET", "/health")
        connection.sendall(one * 3)
        found = b""
        while found.count(b'"ok"') < 3:
            found += connection.recv(65536)


def test_too_many_requests_at_once():
    with Served(waits, limits__http_readers=2) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        for connection in held:
            connection.sendall(asks(stream=True))
        server.until(lambda: len(server.engine.requests()) == 2)
        answer = server.chat("hi")
        refused(answer, 503, "unavailable")
        assert answer.headers["retry-after"]
        assert server.get("/health").status_code == 200
        for connection in held:
            connection.close()
        server.until(lambda: is_idle(server))
        assert server.chat("hi").status_code == 200


def test_long_silence_is_filled(monkeypatch):
    monkeypatch.setattr("cherenkov_server.routes.generation._QUIET_S", 0.05)
    with Served(lambda request: ["a", Pause(0.3), "b"]) as server:
        answer = server.chat(stream=True)
        assert ": still here\n\n" in answer.text
        said = [e["choices"][0]["delta"].get("content", "") for e in events(answer.text)[:-1]]
        assert "".join(said) == "ab"


# --- beginning and end


def test_requests_are_told_to_wait_while_the_model_loads():
    gate = threading.Event()
    engine = ScriptedModel("ok", load=lambda: gate.wait(20) and None)
    server = Served(engine)
    thread = threading.Thread(target=server.__enter__)
    thread.start()
    try:
        answer = until_listening(server)
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        body = {"messages": [{"role": "user", "content": "hi"}]}
        import httpx

        refused(
            httpx.post(f"{server.running.url}/v1/chat/completions", json=body), 503, "unavailable"
        )
    finally:
        gate.set()
        thread.join()
    assert server.get("/health").json() == {"status": "ok"}
    server.__exit__()


def until_listening(server):
    import httpx

    for _ in range(500):
        try:
            return httpx.get(f"{server.running.url}/health")
        except httpx.ConnectError:
            time.sleep(0.01)
    raise AssertionError("it never listened")


def test_draining_lets_answers_end_and_nobody_in():
    release = threading.Event()
    script = lambda request: ["a", Pause(60, release), "b"]  # noqa: E731
    with Served(script, limits__shutdown_seconds=20.0) as server:
        found = []
        asking = threading.Thread(target=lambda: found.append(server.chat().json()))
        asking.start()
        server.until(server.engine.requests)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        server.until(lambda: server.service.state == "draining")
        refused(server.chat(), 503, "unavailable")
        assert server.get("/health").json() == {"status": "draining"}
        release.set()
        asking.join()
        assert found[0]["choices"][0]["message"]["content"] == "ab"
        assert drained.result(120) is True


def test_draining_cuts_off_what_does_not_end():
    with Served(waits, limits__shutdown_seconds=0.2) as server:
        found = []
        asking = threading.Thread(target=lambda: found.append(server.chat("wait").json()))
        asking.start()
        server.until(server.engine.requests)
        assert (
            asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop).result(120)
            is False
        )
        asking.join()
        assert found[0]["choices"][0]["finish_reason"] == "cancelled"
