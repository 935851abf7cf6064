"""Sessions in files."""

import json
import os
import shutil
import threading

import pytest

from cherenkov import Model, Session
from cherenkov.errors import (
    CherenkovError,
    CorruptModel,
    DiskError,
    RequestError,
    UnsupportedModel,
)
from cherenkov.packing.integrity import sealed

QUESTION = "What is the capital of France?"
PCG64 = {
    "bit_generator": "PCG64",
    "state": {"state": 1, "inc": 1},
    "has_uint32": 0,
    "uinteger": 0,
}
TOOL = {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}


@pytest.fixture(scope="module")
def model(glow_store):
    with Model.load(glow_store, context_tokens=256) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def session(model):
    made = model.session(
        system="Be brief.\u2028",
        tools=[TOOL],
        overflow="trim",
        temperature=0.9,
        seed=2,
        max_tokens=12,
        stop=["\n\n", "é"],
        logit_bias={5: -1.5},
        reasoning_effort="low",
        top_logprobs=1,
    )
    made.send("What is the weather in Paris?", temperature=0)
    made.send({"role": "tool", "content": "18 🚀\x00"}, temperature=0.9)
    return made


def same(one, other):
    assert one.history == other.history
    assert one.tools == other.tools
    assert one.settings == other.settings
    assert one.usage == other.usage
    assert (one.system, one.forgotten) == (other.system, other.forgotten)
    assert one._record.overflow == other._record.overflow


def test_it_comes_back_and_goes_on_the_same(model, session, tmp_path):
    path = tmp_path / "talk.json"
    session.save(path)
    loaded = model.load_session(path)
    same(loaded, session)
    assert loaded.cached_tokens == 0
    mine, theirs = session.fork().send("Go on."), loaded.send("Go on.")
    assert theirs.text == mine.text
    assert theirs.logprobs == mine.logprobs
    assert (theirs.usage.cached_tokens, mine.usage.cached_tokens > 0) == (0, True)
    same(Session.load(path, model), session)


def test_a_session_without_anything(model, tmp_path):
    session = model.session()
    session.save(tmp_path / "s")
    same(model.load_session(tmp_path / "s"), session)


def test_arguments_as_deep_as_messages_allow(model, tmp_path):
    deep = 1
    for _ in range(64):
        deep = [deep]
    session = model.session(max_tokens=1)
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": deep[0]}}]}
    session.send([{"role": "user", "content": "Hm."}, call, {"role": "tool", "content": "!"}])
    session.save(tmp_path / "s")
    same(model.load_session(tmp_path / "s"), session)


def test_a_file_is_replaced_as_a_whole(model, session, tmp_path, monkeypatch):
    path = tmp_path / "talk.json"
    session.save(path)
    before = path.read_bytes()
    fork = session.fork()
    fork.send(QUESTION)

    from cherenkov.packing import durable

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "flush", fail)
    with pytest.raises(DiskError, match="No space"):
        fork.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]
    fork.save(path)
    assert len(model.load_session(path).history) == len(fork.history)


def test_a_file_keeps_its_rights(session, tmp_path):
    path = tmp_path / "talk.json"
    path.touch(0o600)
    session.save(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_only_a_file_is_replaced(session, tmp_path):
    """Root could put a file in a device's place."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(DiskError, match="no regular file"):
            session.save(path)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_what_a_killed_writer_left_is_no_obstacle(model, session, tmp_path):
    (tmp_path / ".talk.json.tmp").write_bytes(b"x" * (1 << 20))
    (tmp_path / "talk.json.tmp").write_bytes(b"mine")
    session.save(tmp_path / "talk.json")
    same(model.load_session(tmp_path / "talk.json"), session)
    assert {p.name for p in tmp_path.iterdir()} == {"talk.json", "talk.json.tmp"}
    assert (tmp_path / "talk.json.tmp").read_bytes() == b"mine"


def test_many_may_write_one_file(model, session, tmp_path):
    """Each time one of them is there, and complete."""
    path, found = tmp_path / "talk.json", []
    empty = model.session()
    empty.save(path)
    writers = [session, empty, session.fork(), model.session(system="?" * 5000)]

    def write(one):
        try:
            for _ in range(20):
                one.save(path)
        except CherenkovError as error:
            found.append(error)

    threads = [threading.Thread(target=write, args=(one,)) for one in writers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        model.load_session(path)
    assert found == []
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]


def test_nowhere_to_write_and_nothing_to_read(model, session, tmp_path):
    with pytest.raises(DiskError, match="cannot write"):
        session.save(tmp_path / "absent" / "s")
    with pytest.raises(CorruptModel, match="the file is missing"):
        model.load_session(tmp_path / "absent")
    with pytest.raises(CorruptModel, match="not a regular file"):
        model.load_session(tmp_path)


def test_any_wrong_byte_is_found(model, session, tmp_path):
    path = tmp_path / "talk.json"
    session.save(path)
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 150)):
        wrong = bytearray(data)
        wrong[at] ^= 4
        path.write_bytes(wrong)
        with pytest.raises((CorruptModel, UnsupportedModel)) as caught:
            model.load_session(path)
        assert str(caught.value).isprintable()
    for cut in (0, 1, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:cut])
        with pytest.raises(CorruptModel):
            model.load_session(path)


def test_another_version_and_another_kind(model, session, tmp_path):
    path = tmp_path / "talk.json"
    session.save(path)
    document = json.loads(path.read_bytes())
    del document["self"]
    path.write_bytes(sealed(document | {"version": 2}))
    with pytest.raises(UnsupportedModel, match="version 2"):
        model.load_session(path)
    path.write_bytes(sealed({"kind": "shopping list"}))
    with pytest.raises(CorruptModel, match="no saved session"):
        model.load_session(path)
    path.write_bytes(b"\x89PNG")
    with pytest.raises(CorruptModel):
        model.load_session(path)


@pytest.mark.parametrize(
    "change",
    [
        {"messages": 5},
        {"messages": [{"role": "critic"}]},
        {"messages": None},
        {"first": 99},
        {"first": "1"},
        {"system": 5},
        {"overflow": "explode"},
        {"tools": [5]},
        {"usage": {"prompt_tokens": "many"}},
        {"usage": {"nonsense": 1}},
        {"usage": {"prompt_tokens": 10**400}},
        {"random": PCG64 | {"state": {"state": 2**200, "inc": 1}}},
        {"random": PCG64 | {"state": {"state": -1, "inc": 1}}},
        {"random": PCG64 | {"uinteger": 2**32}},
        {"random": {}},
        {"random": {"bit_generator": "MT19937"}},
        {"random": None},
        {"settings": {}},
        {"settings": None},
    ],
)
def test_sealed_nonsense(model, session, tmp_path, change):
    path = tmp_path / "talk.json"
    session.save(path)
    document = json.loads(path.read_bytes()) | change
    del document["self"]
    path.write_bytes(sealed(document))
    with pytest.raises(CorruptModel, match="malformed"):
        model.load_session(path)


def test_it_belongs_to_its_store(model, session, glow_store, tmp_path):
    path = tmp_path / "talk.json"
    session.save(path)
    other = shutil.copytree(glow_store, tmp_path / "store")
    with Model.load(other, context_tokens=64) as same_model:
        assert same_model.load_session(path).history == session.history
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 1e-5
    (other / "config.json").write_text(json.dumps(config))
    (other / "integrity.json").unlink()
    with (
        Model.load(other, context_tokens=64) as another,
        pytest.raises(UnsupportedModel, match="of another model"),
    ):
        another.load_session(path)


def test_fingerprints_tell_stores_apart(glow_store, tmp_path):
    from cherenkov import prepare
    from cherenkov.packing.store import PackedStore

    first = PackedStore.open(glow_store).fingerprint
    assert len(first) == 16
    again = prepare("demo", tmp_path / "again")
    assert PackedStore.open(again).fingerprint == first
    (again / "integrity.json").unlink()
    assert PackedStore.open(again).fingerprint != first


@pytest.mark.parametrize("path", ["", 5, None, "/"])
def test_what_names_no_file(session, model, path):
    for attempt in (session.save, model.load_session):
        with pytest.raises(RequestError) as refused:
            attempt(path)
        assert refused.value.param == "path"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have(session, model, tmp_path, name):
    with pytest.raises(DiskError, match="no file can have this name"):
        session.save(f"{tmp_path}/{name}")
    with pytest.raises(CorruptModel, match="no file can have this name"):
        model.load_session(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


def test_settings_of_numpy_can_be_saved(model, tmp_path):
    import numpy as np

    made = model.session(temperature=np.float32(0.5), top_k=np.int64(4), seed=np.uint8(1))
    made.save(tmp_path / "s.json")
    assert model.load_session(tmp_path / "s.json").settings == made.settings
