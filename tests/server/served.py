"""A server in a thread of its own, on a free port, with a scripted model behind it."""

import asyncio
import contextlib
import json
import logging
import socket
import threading

import httpx

from cherenkov.testing import ScriptedModel
from cherenkov_server.config import load_config
from cherenkov_server.guard import Keys
from cherenkov_server.loading import limits_of
from cherenkov_server.serve import Running


class Served:
    """Use it in a `with` block. `flags` are settings by `section.key`, with `__` for the dot."""

    def __init__(self, engine=None, *, keys=(), **flags):
        settings = {name.replace("__", "."): value for name, value in flags.items()}
        self.config, _ = load_config(settings)
        if engine is None or not hasattr(engine, "submit"):
            engine = ScriptedModel(engine or "ok", limits=limits_of(self.config))
        self.engine = engine
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.running = Running(
            self.config, self.engine, Keys(list(keys)), self.listener, name="org/scripted"
        )
        self.service = self.running.service
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.is_ready = threading.Event()
        self.loop = None

    async def _serve(self):
        self.loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.running.run())
        await self.service.load()
        self.is_ready.set()
        await serving

    def __enter__(self):
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        self.thread.start()
        assert self.is_ready.wait(120)
        self.client = httpx.Client(base_url=self.running.url, timeout=120)
        return self

    def __exit__(self, *_):
        self.client.close()
        self.running.stop()
        self.thread.join(120)
        self.engine.close()
        self.listener.close()
        assert not self.thread.is_alive()

    def post(self, path, body=None, **more):
        return self.client.post(path, json=body, **more)

    def get(self, path, **more):
        return self.client.get(path, **more)

    def chat(self, content="hi", **more):
        body = {"messages": [{"role": "user", "content": content}]} | more
        return self.post("/v1/chat/completions", body)

    def chat_events(self, content="hi", **more):
        """What a stream sends: JSON values, and `[DONE]` last."""
        answer = self.chat(content, stream=True, **more)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events(answer.text)

    @contextlib.contextmanager
    def raw(self):
        """A bare connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            yield connection

    def until(self, true):
        """Wait for something to become true: for long, since the machine may be busy with other things."""
        done = threading.Event()
        for _ in range(6000):
            if true():
                return
            done.wait(0.01)
        raise AssertionError("it never came")


def events(text):
    found = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def refused(answer, status, code, param=None):
    """Check that an answer is the error object that it should be."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["message"]
    assert "\n" not in error["message"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return error


def request_text(method, path, headers=(), body=b"", host="127.0.0.1"):
    """A request as bytes, for bare connections."""
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
