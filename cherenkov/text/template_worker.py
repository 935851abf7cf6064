"""The process that renders one chat template. Run by path, isolated; `cherenkov.text.template` is its only caller.

A template is a program that came with a model. It runs here, in Jinja's sandbox, under limits of memory, time, files and
output, so that the worst it can do is to end this process. Requests are lines of JSON: first the limits, then the template,
then one for each render. An answer is a letter and a length in bytes, a line feed, and so many bytes: of text (T), or of JSON
that says what failed (E).

This file imports nothing of cherenkov: the interpreter that runs it sees the standard library and Jinja alone.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import signal
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["main"]

_WATCH_INTERVAL_S = 0.02
_OPEN_FILES = 16
_JUDGED = 1000
_DICT_ATTRIBUTES = frozenset(dir(dict))
_METHODS = frozenset({BuiltinMethodType, MethodType})
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Renderer:
    """Jinja's sandbox with what chat templates expect to find in it."""

    def __init__(self, output_limit_chars: int) -> None:
        self._output_limit_chars = output_limit_chars
        self._cut = ""
        self._template: jinja2.Template | None = None
        self._environment = _environment()
        self._environment.filters["tojson"] = self._tojson

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile the template that the first request brings; render it with what the others bring."""
        try:
            if self._template is None:
                template = self._environment.from_string(request["source"])
                template.globals = dict(template.globals)  # a chain of mappings is slow to copy
                self._template = template
                gc.freeze()  # what is here stays, and need not be looked through again
                return {"text": ""}
            return {"text": self._render(self._template, request)}
        except Exception as error:  # noqa: BLE001 - whatever a template does is told to the parent
            return _failure(error)

    def _render(self, template: jinja2.Template, request: dict[str, Any]) -> str:
        self._cut = chr(request["cut"])
        chunks: list[str] = []
        left = self._output_limit_chars
        context = template.new_context(request["values"] | request["own"])
        try:
            for chunk in template.root_render_func(context):
                left -= len(chunk)
                if left < 0:
                    break
                chunks.append(chunk)
        except Exception:  # noqa: BLE001 - which this raises again, with the template's lines
            self._environment.handle_exception()
        finally:
            # Macros and the context hold each other. Apart, their memory serves the next render, and is in the cache.
            context.vars.clear()
        if left < 0:
            raise OverflowError(f"its output exceeds {self._output_limit_chars} characters")
        return "".join(chunks)

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON without HTML escapes, in which the cut character stays as it is."""
        text = json.dumps(
            value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if not ensure_ascii:
            return text
        return _NOT_ASCII.sub(lambda m: m[0] if m[0] == self._cut else json.dumps(m[0])[1:-1], text)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _sandbox()(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation(), "jinja2.ext.loopcontrols"],
    )
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


# Jinja is found only once the first request said where it is.


def _generation() -> type[Extension]:
    from jinja2 import nodes  # noqa: PLC0415
    from jinja2.ext import Extension  # noqa: PLC0415

    class Generation(Extension):
        """`{% generation %}` marks, for training, what the assistant says. Here it is only a scope of variables."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:  # type: ignore[explicit-override]
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation


def _sandbox() -> type[ImmutableSandboxedEnvironment]:  # noqa: C901 - three short methods
    from jinja2.runtime import Macro  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    from jinja2.utils import Namespace, missing  # noqa: PLC0415

    class Sandbox(ImmutableSandboxedEnvironment):
        """The sandbox, quicker at what templates do most: reading attributes, entries of dictionaries as such, and calls."""

        judged: dict[tuple[type, str], bool] = {}  # noqa: RUF012 - one environment a process

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # type: ignore[explicit-override]
            # The judgement depends on the type and the name alone.
            known = self.judged.get((type(obj), attr))
            if known is None:
                known = super().is_safe_attribute(obj, attr, value)
                if len(self.judged) < _JUDGED:
                    self.judged[type(obj), attr] = known
            return known

        def getattr(self, obj: Any, attribute: str) -> Any:  # type: ignore[explicit-override]
            if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
                if attribute in obj:
                    return obj[attribute]
                return self.undefined(obj=obj, name=attribute)
            if self.judged.get((type(obj), attribute)):  # and found safe
                value = getattr(obj, attribute, None)
                # Formatting is for the sandbox to wrap, and what is not there for it to look for elsewhere.
                if value is not None and type(value) not in _METHODS:
                    return value
            return super().getattr(obj, attribute)

        def call(  # type: ignore[explicit-override]
            self,
            context: Context,
            obj: Any,
            /,
            *args: Any,
            _loop_vars: Any = None,
            _block_vars: Any = None,
            **given: Any,
        ) -> Any:
            # Macros, methods of strings and namespaces are safe to call, and need none of the looks that other objects do.
            is_macro = type(obj) is Macro
            is_method = type(obj) is BuiltinMethodType and type(obj.__self__) is str
            if not (is_macro or is_method or obj is Namespace):
                scopes = {"_loop_vars": _loop_vars, "_block_vars": _block_vars}
                return super().call(context, obj, *args, **given, **scopes)
            if is_macro:
                short = obj._argument_count - len(args)
                special = obj.caller or obj.catch_kwargs or obj.catch_varargs
                if given or short < 0 or special or context.eval_ctx.autoescape:
                    args = (context.eval_ctx, *args)
                else:  # what is left of a call when nothing is unusual about it
                    return obj._func(*args, *(missing,) * short)
            try:
                return obj(*args, **given)
            except StopIteration:
                return self.undefined("value was undefined because a callable stopped an iteration")

    return Sandbox


def _raise_exception(message: object) -> None:
    from jinja2 import TemplateError  # noqa: PLC0415

    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _failure(error: Exception) -> dict[str, Any]:
    """What the parent is told: the class, the message and, if it is known, the template's line."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return {"error": type(error).__name__, "message": str(error)[:1000], "line": line}


def _limit(memory_bytes: int, *, watch: bool) -> None:
    """Bound this process for good: memory, files, and no writing."""
    for what, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        if watch and what == resource.RLIMIT_AS:
            # Where the kernel does not enforce it, a thread does.
            threading.Thread(target=_watch_memory, args=(memory_bytes,), daemon=True).start()
            continue
        hard = resource.getrlimit(what)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (allowed, allowed))


def _watch_memory(limit_bytes: int) -> None:
    while _resident_bytes() < limit_bytes:
        time.sleep(_WATCH_INTERVAL_S)
    os._exit(1)


def _resident_bytes() -> int:
    """Memory that this process holds, or held at most where the system counts from its start."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Elsewhere the maximum is that of the parent, which was copied when this process was made.
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _send(answer: dict[str, Any]) -> None:
    text = answer.get("text")
    if text is None:
        kind, body = b"E", json.dumps(answer).encode()
    else:
        kind, body = b"T", text.encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(b"%b%d\n%b" % (kind, len(body), body))
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve until the input ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which then closes the input
    start = json.loads(sys.stdin.buffer.readline())
    sys.path += start["path"]
    renderer = Renderer(start["output_limit_chars"])
    _limit(start["memory_bytes"], watch=start["watch"])
    _send({"text": ""})
    read = json.JSONDecoder().raw_decode
    for line in sys.stdin.buffer:
        # The kernel ends us if we are still busy then: even inside C code, even if the parent is gone. Waiting for the next
        # line takes no processor time, so this is not undone: where a thread watches, it uses that up in an hour or so, and
        # an idle process is ended, and replaced when it is needed.
        signal.setitimer(signal.ITIMER_PROF, start["deadline_s"])
        _send(renderer.answer(read(line.decode("utf-8", "surrogatepass"))[0]))


if __name__ == "__main__":
    main()
