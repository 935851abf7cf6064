"""`cherenkov kernels`: the GPU's kernels, their text, and whether it compiles here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from cherenkov_cli.completion import names
from cherenkov_cli.show import complain, print_json, say, table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cherenkov.backends.shaders import Kernel

__all__ = ["command"]

_SENTENCE_END = re.compile(r"(?<=[^\s,])[.:] ")
"""Not the dot of a product or the colon of a slice, which stand free."""


def _known(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    from cherenkov.backends.kernel_catalogue import KERNELS

    return names(*KERNELS)(ctx, param, begun)


@click.command("kernels", short_help="List the GPU kernels, show or compile them.")
@click.argument("name", required=False, shell_complete=_known)
@click.option("--cuda", is_flag=True, help="Show the text for CUDA, not for Metal.")
@click.option("--check", is_flag=True, help="Compile with what is here, without a GPU.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(name: str | None, cuda: bool, check: bool, as_json: bool) -> int:
    """List the kernels, or show the text of NAME as MLX compiles it for a row of the published model.

    With --check, compile them: for the emulator with a C++ compiler, with clang where address spaces are real, and for NVIDIA
    with nvcc. Exits with 1 if one does not compile.
    """
    from cherenkov.backends.kernel_catalogue import KERNELS, example
    from cherenkov.errors import ConfigError

    if name is not None and name not in KERNELS:
        raise ConfigError("kernel", name, f"known are {', '.join(KERNELS)}")
    chosen = [KERNELS[name]] if name else list(KERNELS.values())
    if check:
        return _check(chosen, as_json=as_json)
    if name:
        call = example(name)
        print(chosen[0].cuda_text(call) if cuda else chosen[0].metal_text(call))
    elif as_json:
        print_json({k.name: {"inputs": k.inputs, "outputs": k.outputs} for k in chosen})
    else:
        print(table([(k.name, _purpose(k)) for k in chosen], indent=""))
    return 0


def _purpose(kernel: Kernel) -> str:
    """The first sentence of a kernel's comment."""
    lines = []
    for line in kernel.body.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    text = " ".join(lines)
    return _SENTENCE_END.split(text, maxsplit=1)[0].rstrip(".")


def _check(chosen: list[Kernel], *, as_json: bool) -> int:
    found = {}
    for number, kernel in enumerate(chosen, 1):
        say(f"compiling {kernel.name} ({number} of {len(chosen)})")
        found[kernel.name] = _compiled(kernel)
    if as_json:
        print_json(found)
    else:
        heads = ["kernel", *next(iter(found.values()))]
        rows = [(name, *(_word(v) for v in each.values())) for name, each in found.items()]
        print(table([tuple(heads), *rows], indent=""))
        for name, each in found.items():
            for how, result in each.items():
                if result:
                    complain(f"{name}, {how}: {result}")
    return int(any(result for each in found.values() for result in each.values()))


def _word(result: str | None) -> str:
    return "not here" if result is None else "does not compile" if result else "compiles"


def _compiled(kernel: Kernel) -> dict[str, str | None]:
    """What each compiler says: empty if it is content, None if it is not here."""
    from cherenkov.backends.kernel_catalogue import example
    from cherenkov.backends.shader_builds import (
        Emulation,
        check_with_clang,
        compile_for_cuda,
        first_error,
        tool,
    )
    from cherenkov.backends.shader_lint import problems

    call, clang, nvcc = example(kernel.name), tool("clang++", "clang"), tool("nvcc")
    linted = problems(kernel)
    spaces = None if clang is None else check_with_clang(kernel, call, clang)
    return {
        "dialect": linted[0] if linted else "",
        "emulator": _error(lambda: Emulation().build(kernel, call)) if tool("g++", "c++") else None,
        "address spaces": first_error(spaces) if spaces else spaces,
        "nvcc": None if nvcc is None else _error(lambda: compile_for_cuda(kernel, call, nvcc)),
    }


def _error(call: Any) -> str:
    from cherenkov.errors import BackendError

    try:
        call()
    except BackendError as error:
        return str(error)
    return ""
