"""A server whose disk fails: requests fail alone, are told so in few words, and the next ones are served."""

import errno
import logging
import os
import random
import shutil

import pytest

from cherenkov import Model
from cherenkov.engine import Engine, Limits
from cherenkov.errors import BackendError
from tests.faulty_disk import FaultyDisk
from tests.server.served import Served, refused

QUESTIONS = ["What is the capital of France?", "Count to ten.", "Who are you?", "What is 2 plus 3?"]


def served(store):
    """Glow in a pool so small that experts are read all the time, and a cache that keeps nothing."""
    try:
        model = Model.load(store, backend="native", context_tokens=256, pool=0.004, sequences=4)
    except BackendError as error:
        pytest.skip(str(error))
    return model, Served(Engine(model, Limits(max_batch=4, prefix_cache_bytes=0)))


@pytest.fixture
def disk(monkeypatch):
    disk = FaultyDisk()
    monkeypatch.setattr("cherenkov.experts.reader.reads_into", disk.reads_into)
    return disk


def answers(server):
    said = []
    for question in QUESTIONS:
        answer = server.chat(question, max_tokens=6)
        assert answer.status_code == 200
        said.append(answer.json()["choices"][0]["message"]["content"])
    return said


def fails(server, question):
    error = refused(server.chat(question, max_tokens=6), 500, "internal_error")
    assert error["type"] == "server_error"
    return error["message"]


def test_reads_that_fail(glow_store, disk, caplog, monkeypatch):
    model, serving = served(glow_store)
    with model, serving as server:
        well = answers(server)
        monkeypatch.setattr(logging.getLogger("cherenkov.server"), "propagate", True)
        disk.broken = errno.EIO
        with caplog.at_level(logging.ERROR):
            words = fails(server, QUESTIONS[1])
        assert words == "experts.bin cannot be read: the server's log says more"
        assert str(glow_store) in caplog.text
        assert os.strerror(errno.EIO) in caplog.text
        *_, last = server.chat_events(QUESTIONS[2], max_tokens=6)
        assert last["error"]["message"] == words
        disk.broken = None
        assert answers(server) == well
        chance = random.Random(8)
        for number in range(5):
            disk.errors = [errno.EIO if chance.random() < 0.05 else None for _ in range(2000)]
            answer = server.chat(QUESTIONS[number % 4], max_tokens=6)
            if answer.status_code == 200:  # each failure was followed by a read that went well
                said = answer.json()["choices"][0]["message"]["content"]
                assert said == well[number % 4]
            else:
                assert refused(answer, 500, "internal_error")["message"] == words
        disk.errors = []
        assert answers(server) == well
        figures = server.engine.metrics()
        assert (figures.active, figures.queued, figures.state_bytes) == (0, 0, 0)


@pytest.mark.parametrize("what", ["shrinks", "goes"])
def test_a_store_that_changes_under_the_server(glow_store, tmp_path, what):
    """Files that are removed, or replaced by others, are still the ones that were opened; one that is cut is not whole."""
    store = tmp_path / "store"
    shutil.copytree(glow_store, store)
    model, serving = served(store)
    with model, serving as server:
        well = answers(server)
        if what == "goes":
            shutil.rmtree(store)
            assert answers(server) == well
            return
        whole = (store / "experts.bin").read_bytes()
        for name in ("experts.bin", "dense.bin", "ngram.bin"):
            os.truncate(store / name, 1000)
        words = fails(server, QUESTIONS[1])
        assert words == "experts.bin is damaged: the server's log says more"
        assert server.get("/health").status_code == 200
        (store / "experts.bin").write_bytes(whole)
        assert answers(server)[1] == well[1]
