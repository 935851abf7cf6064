"""From clones of Standard Ebooks repositories to plain text, one file a book, a form feed between its parts.

python -m benchmarks.demo_model.books WORK        # reads WORK/books/*/.git, writes WORK/text/*.txt
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

_NOT_PROSE = {
    "titlepage",
    "imprint",
    "colophon",
    "uncopyright",
    "halftitlepage",
    "halftitle",
    "endnotes",
    "dedication",
    "loi",
    "epigraph",
}
_SHORTEST_PART = 600
_PLAIN = str.maketrans(
    {
        "\u2060": "",
        "\u00ad": "",
        "\ufeff": "",
        "\u200a": "",
        "\u201c": '"',
        "\u201d": '"',
        "\u2018": "'",
        "\u2019": "'",
        "\u00a0": " ",
        "\u2026": "...",
        "\u2011": "-",
        "\u2009": " ",
        "\u202f": " ",
    }
)


def plain_text(page: str) -> str:
    """The prose of one XHTML page, a paragraph a line."""
    page = re.sub(r"<head>.*?</head>", "", page, flags=re.DOTALL)
    page = re.sub(r'<a [^>]*epub:type="noteref"[^>]*>.*?</a>', "", page, flags=re.DOTALL)
    page = re.sub(r"<h\d[^>]*>.*?</h\d>|<header>.*?</header>", "\n", page, flags=re.DOTALL)
    page = re.sub(r"\s+", " ", page)
    page = re.sub(r"</p>|<br ?/>|</blockquote>", "\n", page)
    page = html.unescape(re.sub(r"<[^>]+>", "", page)).translate(_PLAIN)
    return "\n".join(line.strip() for line in page.split("\n") if line.strip())


def book(repository: Path) -> str:
    """The text of a book, part after part."""

    def git(*arguments: str) -> str:
        command = ["git", "--git-dir", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def reading_order(name: str) -> list[int | str]:
        return [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]

    names = git("ls-tree", "-r", "--name-only", "HEAD", "src/epub/text/").split()
    chosen = [name for name in names if Path(name).stem not in _NOT_PROSE]
    parts = [plain_text(git("show", f"HEAD:{name}")) for name in sorted(chosen, key=reading_order)]
    return "\n\f\n".join(part for part in parts if len(part) > _SHORTEST_PART)


def main() -> None:
    work = Path(sys.argv[1])
    (work / "text").mkdir(exist_ok=True)
    for repository in sorted(work.glob("books/*/.git")):
        target = work / "text" / f"{repository.parent.name}.txt"
        target.write_text(book(repository), encoding="utf-8")
        print(target.name, target.stat().st_size)


if __name__ == "__main__":
    main()
