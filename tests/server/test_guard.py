"""Who may call, and how much they may send."""

import json
import logging
import socket

import pytest

from cherenkov_server.guard import Rules, is_loopback, printable
from cherenkov_server.wire.refusals import Refusal
from tests.server.served import Served, refused, request_text

BODY = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server():
    flags = {
        "server__cors_origins": ["https://app.example"],
        "server__allowed_hosts": ["Models.example"],
        "limits__request_bytes": 20_000,
        "limits__header_bytes": 8_000,
        "limits__body_seconds": 0.5,
    }
    with Served("ok", **flags) as server:
        yield server


def answered(server, request):
    """The status and the error code of what comes back on a bare connection."""
    with server.raw() as connection:
        connection.sendall(request)
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
            head, _, body = found.partition(b"\r\n\r\n")
            if b"content-length" in head.lower() and body.strip():
                break
    status = int(found.split(b" ")[1])
    error = json.loads(body[body.index(b"{") :]) if b"{" in body else {}
    return status, error.get("error", {}).get("code")


# --- names of this server


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST:8080",
        "[::1]:1",
        "127.8.9.1",
        "localhost.",
        "models.EXAMPLE:1",
    ],
)
def test_names_that_are_ours(server, host):
    assert answered(server, request_text("GET", "/health", host=host)) == (200, None)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8080",
        "10.0.0.1",
        "0.0.0.0",
        "[::2]",
        "localhost:80@evil.example",
        "models.example.evil",
        "",
        "localhost:port",
        "localhost/x",
    ],
)
def test_names_that_are_not(server, host):
    found = answered(server, request_text("GET", "/health", host=host))
    assert found == (403, "host_not_allowed")


def test_without_a_name(server):
    # HTTP/1.1 demands one, which the parser sees to; 1.0 does not.
    status, _ = answered(server, request_text("GET", "/health", host=None))
    assert status == 400
    old = request_text("GET", "/health", host=None).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert answered(server, old) == (403, "host_not_allowed")


def test_bare_addresses_are_names_of_a_server_for_others():
    rules = Rules(is_local=False)
    rules.check_host({b"host": b"10.0.0.1:8080"})
    with pytest.raises(Refusal):
        rules.check_host({b"host": b"evil.example"})


def test_what_loopback_is():
    assert all(map(is_loopback, ("127.0.0.1", "127.255.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.evil", "")))


# --- web pages


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.com",
        "http://127.0.0.1.evil.com",
        "http://localhost:3000",
        "https://app.example.evil",
        "https://app.example:444",
        "http://app.example",
        "null",
        "",
    ],
)
def test_pages_that_may_not_call(server, origin):
    answer = server.post("/v1/chat/completions", BODY, headers={"origin": origin})
    refused(answer, 403, "origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers


def test_pages_that_may(server):
    answer = server.post("/v1/chat/completions", BODY, headers={"origin": "https://app.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "origin" in answer.headers["vary"]
    own = server.post("/v1/chat/completions", BODY, headers={"origin": server.running.url})
    assert own.status_code == 200
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    answer = server.client.options("/v1/chat/completions", headers=asked)
    assert answer.status_code == 200
    assert "POST" in answer.headers["access-control-allow-methods"]
    evil = asked | {"origin": "https://evil.example"}
    refused(server.client.options("/v1/models", headers=evil), 403, "origin_not_allowed")


# --- keys


def test_keys():
    with Served("ok", keys=["secret-one", "secret-two"]) as server:
        assert server.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/schema", "/v1/requests"):
            refused(server.get(path), 401, "invalid_api_key")
        for header in (
            "Bearer wrong",
            "Bearer",
            "Basic secret-one",
            "secret-one",
            "Bearer secret-on",
        ):
            answer = server.get("/v1/models", headers={"authorization": header})
            refused(answer, 401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        refused(server.get("/v1/models?api_key=secret-one"), 401, "invalid_api_key")
        for headers in (
            {"authorization": "Bearer secret-one"},
            {"authorization": "bearer secret-two"},
            {"x-api-key": "secret-two"},
        ):
            assert server.get("/v1/models", headers=headers).status_code == 200


def test_a_key_is_judged_before_the_body_is_read():
    with Served("ok", keys=["secret"]) as server:
        answer = server.post("/v1/chat/completions", {"messages": "x" * 100_000})
        refused(answer, 401, "invalid_api_key")


# --- bodies and headers


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "application/json; charset=utf-16",
        "",
    ],
)
def test_bodies_must_be_json(server, kind):
    answer = server.client.post(
        "/v1/chat/completions", content=json.dumps(BODY), headers={"content-type": kind}
    )
    refused(answer, 415, "unsupported_media_type")


def test_json_may_say_its_charset(server):
    for kind in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
        answer = server.client.post(
            "/v1/chat/completions", content=json.dumps(BODY), headers={"content-type": kind}
        )
        assert answer.status_code == 200


def test_two_lengths_are_refused(server):
    headers = {"content-length": "5", "transfer-encoding": "chunked"}
    with server.raw() as connection:
        text = request_text("POST", "/tokenize", [*headers.items()])
        connection.sendall(text + b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_packed_bodies_are_refused(server):
    headers = {"content-encoding": "gzip"}
    answer = server.post("/v1/chat/completions", BODY, headers=headers)
    refused(answer, 415, "unsupported_media_type")


INVALID = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b'{"temperature": NaN}',
    b'{"temperature": Infinity}',
    b'{"temperature": 1e999999}',
    b'{"a": ' + b"1" * 5000 + b"}",
    b'{"a": ' + b"[" * 9000 + b"]" * 9000 + b"}",
    b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
    b"[" * 9000,
    b'{"a":' * 3000,
    b'{"\\ud800": 1}',
]


@pytest.mark.parametrize("body", INVALID, ids=lambda b: repr(b[:20]))
def test_what_is_no_json(server, body):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/sessions", "/tokenize"):
        answer = server.client.post(
            path, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] in {
            "invalid_json",
            "unknown_parameter",
            "invalid_value",
        }


def test_long_bodies_are_refused_however_they_come(server):
    long = json.dumps(BODY | {"user": "x" * 30_000}).encode()
    answer = server.client.post(
        "/v1/chat/completions", content=long, headers={"content-type": "application/json"}
    )
    refused(answer, 413, "request_too_large")

    def pieces():
        for i in range(0, len(long), 1000):
            yield long[i : i + 1000]

    answer = server.client.post(
        "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
    )
    refused(answer, 413, "request_too_large")


def test_chunked_bodies_are_read(server):
    body = json.dumps(BODY).encode()
    answer = server.client.post(
        "/v1/chat/completions",
        content=iter([body[:9], body[9:]]),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 200


def test_headers_have_limits(server):
    many = [(f"x-{i}", "1") for i in range(101)]
    assert answered(server, request_text("GET", "/health", many)) == (431, "headers_too_large")
    long = [("x-long", "a" * 4_000), ("x-longer", "a" * 4_000)]
    assert answered(server, request_text("GET", "/health", long)) == (431, "headers_too_large")
    status, code = answered(server, request_text("GET", "/" + "a" * 5_000))
    assert (status, code) == (414, "uri_too_long")
    endless = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100_000
    assert answered(server, endless) == (400, "invalid_http")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"hello\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
)
def test_what_is_no_http(server, nonsense):
    assert answered(server, nonsense) == (400, "invalid_http")


def test_a_request_to_become_something_else_is_ignored(server):
    headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")]
    assert answered(server, request_text("GET", "/health", headers)) == (200, None)


def test_large_but_allowed_messages(server):
    messages = [{"role": "user", "content": ""}] * 500
    answer = server.post("/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 200
    refused(
        server.post("/v1/chat/completions", {"messages": [{}] * 4000}),
        400,
        "invalid_value",
        "messages",
    )


# --- what is logged


def test_the_log_tells_nothing(server, caplog):
    logger = logging.getLogger("cherenkov.server")
    logger.propagate, before = True, logger.level
    logger.setLevel(logging.DEBUG)
    canary = "canary-7f3a"
    try:
        with caplog.at_level(logging.DEBUG):
            headers = {"authorization": f"Bearer {canary}", "cookie": canary}
            body = BODY | {"user": canary, "messages": [{"role": "user", "content": canary}]}
            assert server.post("/v1/chat/completions", body, headers=headers).status_code == 200
            server.post(f"/v1/chat/completions?key={canary}", body | {"n": canary}, headers=headers)
            assert canary not in server.get("/metrics").text
            server.get("/v1/a%0d%0aforged%1b%5b31m")
    finally:
        logger.setLevel(before)
    lines = [record.getMessage() for record in caplog.records if record.name == "cherenkov.server"]
    assert len(lines) >= 4
    assert not any(canary in line for line in lines)
    assert not any("\r" in line or "\n" in line or "\x1b" in line for line in lines)


def test_printable():
    assert printable("a\r\nb\x1b[31m") == "a\\r\\nb\\x1b[31m"
    assert len(printable("x" * 10_000)) <= 200


def test_port_of_another_protocol_is_closed(server):
    with server.raw() as connection:
        connection.sendall(b"\x00" * 64)
        connection.settimeout(10)
        assert b"400" in connection.recv(4096)


def test_ipv6():
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    rules = Rules()
    rules.check_host({b"host": b"[::1]:8080"})
    with pytest.raises(Refusal):
        rules.check_host({b"host": b"[2001:db8::1]:8080"})
