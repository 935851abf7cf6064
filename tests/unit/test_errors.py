"""Errors: one tree, one line each, and the fields that callers decide by."""

import errno
import inspect
from pathlib import Path

import pytest

from cherenkov import errors
from cherenkov.errors import (
    BackendError,
    Cancelled,
    CapacityError,
    CherenkovError,
    ConfigError,
    ContextTooLong,
    CorruptModel,
    DiskError,
    ModelError,
    ModelNotFound,
    RequestError,
    TemplateError,
    UnsupportedModel,
    UnsupportedParam,
)

EXAMPLES = [
    ConfigError("pool", -1, "must be positive"),
    ModelNotFound("qwen", ["/a", "/b"], "prepare one first"),
    UnsupportedModel("config.json: model_type = 'x'", known="qwen4_exp", key="model_type"),
    CorruptModel(Path("/m/a.bin"), "cut short", item="t", offset=9, expected=4, found=3),
    TemplateError("no chat template"),
    RequestError("the prompt is empty", param="prompt"),
    ContextTooLong(90, 20, 100),
    UnsupportedParam("logit_bias"),
    CapacityError("not enough memory", asked_bytes=9, available_bytes=4),
    DiskError("/m/a.bin", "write", errno.ENOSPC),
    BackendError("native", "start", "no compiler"),
    Cancelled(),
]


def test_every_public_class_is_in_the_tree_and_has_an_example():
    classes = {
        n for n, c in vars(errors).items() if inspect.isclass(c) and c.__module__ == errors.__name__
    }
    assert classes == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), CherenkovError) for name in classes)
    abstract = {"CherenkovError", "ModelError"}
    assert {type(e).__name__ for e in EXAMPLES} == classes - abstract
    assert all(name in errors.__doc__ for name in classes)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_messages_are_one_line(error):
    assert str(error).isprintable()
    assert isinstance(error, CherenkovError)


def test_messages_say_what_where_and_what_to_do():
    by_type = {type(e): str(e) for e in EXAMPLES}
    assert by_type[ConfigError] == "pool = -1 (argument): must be positive"
    assert by_type[ModelNotFound] == "no model 'qwen': looked at /a, /b; prepare one first"
    assert by_type[CorruptModel] == "/m/a.bin: t: cut short (expected 4, found 3) at byte 9"
    assert by_type[DiskError] == (
        "/m/a.bin: cannot write: No space left on device; free some space or choose another folder"
    )
    assert "--max-ctx" in by_type[ContextTooLong]
    assert by_type[UnsupportedModel].endswith("(supported: qwen4_exp)")


def test_fields():
    corrupt = CorruptModel("f", "r", item="i", offset=0)
    assert (corrupt.path, corrupt.item, corrupt.offset, corrupt.expected) == ("f", "i", 0, None)
    assert str(corrupt).endswith("at byte 0")
    wrapped = DiskError.wrap(OSError(errno.EIO, "x"), "p", "read")
    assert (wrapped.path, wrapped.operation, wrapped.errno) == ("p", "read", errno.EIO)
    assert "Input/output error" in str(wrapped)
    assert str(DiskError.wrap(OSError("odd"), "p", "read")) == "p: cannot read: odd"
    long = ContextTooLong(90, 20, 100)
    assert (long.param, long.code) == ("prompt", "context_length_exceeded")
    assert issubclass(ModelNotFound, ModelError)
    assert UnsupportedParam("n").code == "unsupported_parameter"


@pytest.mark.parametrize("nasty", ["a\nb", "a\x1b[31mb", "a\u202eb", "a\udcffb", "a\x00b"])
def test_hostile_names_cannot_leave_the_line(nasty):
    for error in (
        CorruptModel(nasty, "cut short", item=nasty),
        ModelNotFound(nasty, [nasty]),
        UnsupportedModel(nasty),
        DiskError(nasty, "read", errno.EIO),
        TemplateError(nasty),
    ):
        assert str(error).isprintable()
        str(error).encode()
