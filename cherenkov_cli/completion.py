"""What a shell may complete values with: files, folders, models and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import click
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

__all__ = ["files", "folders", "models", "names"]


def files(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Files, as the shell finds them."""
    return [_found_by_shell("file", begun)]


def folders(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Folders, as the shell finds them."""
    return [_found_by_shell("dir", begun)]


def models(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """The demonstration model, or folders; bash shows these where what was begun is no part of `demo`."""
    return [_found_by_shell("dir", begun), *_beginning(("demo",), begun)]


def names(*known: str) -> Completer:
    """Some of these."""
    return lambda _ctx, _param, begun: _beginning(known, begun)


def _found_by_shell(kind: str, begun: str) -> CompletionItem:
    from click.shell_completion import CompletionItem

    return CompletionItem(begun, type=kind)


def _beginning(known: tuple[str, ...], begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in known if name.startswith(begun)]
