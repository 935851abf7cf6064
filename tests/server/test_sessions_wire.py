"""Sessions, requests under way, and how they are cancelled."""

import threading

import pytest

from cherenkov.testing import Pause
from tests.server.served import Served, refused


def words(request):
    messages = getattr(request, "messages", None) or request.message
    content = messages[-1]["content"]
    return ["ab", Pause(60), "cd"] if content == "wait" else f"{len(messages)} said"


@pytest.fixture
def server():
    with Served(words, limits__active_requests=2, limits__queued_requests=2) as server:
        yield server


def background(act):
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    return thread, found


def test_only_new_messages_are_sent(server):
    opened = server.post("/v1/sessions", {"system": "Be brief.", "temperature": 0.5}).json()
    assert (opened["object"], opened["turns"], opened["messages"]) == ("session", 0, 1)
    assert opened["settings"]["temperature"] == 0.5
    name = opened["id"]
    answer = server.chat("hi", session_id=name)
    assert answer.json()["choices"][0]["message"]["content"] == "1 said"
    server.chat("and?", session_id=name, temperature=0.75)
    found = server.get(f"/v1/sessions/{name}").json()
    assert (found["turns"], found["messages"], found["busy"]) == (2, 5, False)
    assert found["settings"]["temperature"] == 0.75
    assert found["usage"]["generated_tokens"] == 14
    gone = server.client.delete(f"/v1/sessions/{name}").json()
    assert gone == {"id": name, "object": "session.deleted", "deleted": True}
    refused(server.get(f"/v1/sessions/{name}"), 404, "session_not_found", "session_id")
    refused(server.chat(session_id=name), 404, "session_not_found", "session_id")
    refused(server.client.delete(f"/v1/sessions/{name}"), 404, "session_not_found", "session_id")


def test_options_left_out_stay_as_they_are(server):
    name = server.post("/v1/sessions", {"seed": 5, "max_tokens": 4}).json()["id"]
    server.chat(session_id=name)
    turn = server.engine.seen[-1]
    assert turn.options == {}
    assert turn.tools is None
    server.chat(session_id=name, tool_choice="none", max_tokens=9)
    turn = server.engine.seen[-1]
    assert turn.options == {"max_tokens": 9}
    assert turn.tools == []


def test_one_turn_at_a_time(server):
    name = server.post("/v1/sessions", {}).json()["id"]
    thread, found = background(lambda: server.chat("wait", session_id=name, request_id="one"))
    server.until(lambda: server.get(f"/v1/sessions/{name}").json()["busy"])
    refused(server.chat(session_id=name), 409, "busy")
    server.post("/v1/requests/one/cancel")
    thread.join()
    assert found[0].json()["choices"][0]["finish_reason"] == "cancelled"
    assert server.get(f"/v1/sessions/{name}").json()["turns"] == 0


def test_what_sessions_refuse(server):
    name = server.post("/v1/sessions", {}).json()["id"]
    refused(server.chat(session_id=name, n=2), 400, "unsupported_parameter", "n")
    refused(server.chat(session_id=name, max_tokens=0), 400, "unsupported_parameter", "max_tokens")
    refused(server.post("/v1/sessions", {"temperature": 9}), 400, "invalid_value", "temperature")
    refused(server.post("/v1/sessions", {"overflow": "x"}), 400, "invalid_value", "overflow")


def test_requests_under_way(server):
    ask = lambda i: background(lambda: server.chat("wait", request_id=f"r{i}"))[0]  # noqa: E731
    threads = [ask(0), ask(1)]
    server.until(lambda: server.engine.metrics().active == 2)  # else the queue might be full
    threads.append(ask(2))
    server.until(lambda: len(server.get("/v1/requests").json()["data"]) == 3)
    listed = server.get("/v1/requests").json()["data"]
    assert {one["id"] for one in listed} == {"r0", "r1", "r2"}
    assert sorted(one["phase"] for one in listed) == ["decoding", "decoding", "queued"]
    assert not any("content" in str(one) or "wait" in str(one) for one in listed)
    refused(server.chat("hi", request_id="r1"), 409, "duplicate_request_id", "request_id")
    for i in range(3):
        answer = server.post(f"/v1/requests/r{i}/cancel")
        assert answer.json()["cancelled"] is True
    for thread in threads:
        thread.join()
    refused(server.post("/v1/requests/r0/cancel"), 404, "request_not_found", "id")


def test_cancelled_before_its_turn_came(server):
    held = [background(lambda i=i: server.chat("wait", request_id=f"r{i}"))[0] for i in range(2)]
    server.until(lambda: server.engine.metrics().active == 2)
    thread, found = background(lambda: server.chat("wait", stream=True, request_id="late"))
    server.until(lambda: server.engine.metrics().queued == 1)
    server.post("/v1/requests/late/cancel")
    thread.join()
    refused(found[0], 499, "cancelled")
    for i in range(2):
        server.post(f"/v1/requests/r{i}/cancel")
        held[i].join()


def test_every_choice_of_a_request_is_cancelled(server):
    thread, found = background(lambda: server.chat("wait", n=2, request_id="both"))
    server.until(lambda: server.engine.metrics().active == 2)
    server.post("/v1/requests/both/cancel")
    thread.join()
    reasons = [choice["finish_reason"] for choice in found[0].json()["choices"]]
    assert reasons == ["cancelled", "cancelled"]
    assert [c["message"]["content"] for c in found[0].json()["choices"]] == ["ab", "ab"]


def test_a_full_queue(server):
    threads = []
    for i in range(4):
        threads.append(background(lambda i=i: server.chat("wait", request_id=f"r{i}"))[0])
        server.until(lambda i=i: server.engine.metrics().active == min(i + 1, 2))
        server.until(lambda i=i: len(server.engine.requests()) == i + 1)
    answer = server.chat("hi")
    error = refused(answer, 429, "queue_full")
    assert error["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1
    for i in range(4):
        server.post(f"/v1/requests/r{i}/cancel")
        threads[i].join()
    assert server.chat("hi").status_code == 200


def test_sessions_and_requests_belong_to_their_key():
    def as_(key):
        return {"authorization": f"Bearer {key}"}

    with Served(words, keys=["a-key", "b-key"]) as server:
        name = server.post("/v1/sessions", {}, headers=as_("a-key")).json()["id"]
        refused(
            server.get(f"/v1/sessions/{name}", headers=as_("b-key")),
            404,
            "session_not_found",
            "session_id",
        )
        body = {"messages": [{"role": "user", "content": "wait"}], "request_id": "mine"}
        thread, _ = background(
            lambda: server.post("/v1/chat/completions", body, headers=as_("a-key"))
        )
        server.until(server.engine.requests)
        assert server.get("/v1/requests", headers=as_("b-key")).json()["data"] == []
        refused(
            server.post("/v1/requests/mine/cancel", headers=as_("b-key")),
            404,
            "request_not_found",
            "id",
        )
        assert server.post("/v1/requests/mine/cancel", headers=as_("a-key")).status_code == 200
        thread.join()
