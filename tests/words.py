"""``python -m tests.words [PAGE...]``: words of pages, their long sentences, wide lines of code.

User pages are README.md and what docs/index.md lists above its heading "Inside".
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 30
"""A sentence with more words is long."""
WIDE = 80
"""A line of code with more columns is wide."""

_FENCED = re.compile(r"^```(\w*).*?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_LISTED = re.compile(r"^- \[[^\]]*\]\(([^)#]+)\)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z]")


@dataclass(frozen=True)
class Page:
    """The counts of a page: words as in `wc`, sentences, long ones, wide lines of code."""

    name: str
    words: int
    sentences: int
    long: tuple[str, ...]
    wide: tuple[str, ...]


def user_pages() -> list[str]:
    """Return the pages that users read, from docs/index.md."""
    text = (ROOT / "docs" / "index.md").read_text("utf-8").partition("\n## Inside")[0]
    found = [os.path.normpath(f"docs/{each}") for each in _LISTED.findall(text)]
    # It is generated: a table of marks.
    return ["docs/index.md", *(each for each in found if each != "docs/matrix.md")]


def count(name: str) -> Page:
    """Count a page by its path from the root."""
    text = (ROOT / name).read_text("utf-8")
    wide = [line for _, code in _FENCED.findall(text) for line in code.splitlines()]
    prose = _FENCED.sub("\n\n", text)
    sentences = [each for block in _blocks(prose) for each in _sentences(block)]
    return Page(
        name,
        len(text.split()),
        len(sentences),
        tuple(each for each in sentences if _words(each) > LONG),
        tuple(line for line in wide if len(line) > WIDE),
    )


def _blocks(prose: str) -> list[str]:
    """Return paragraphs, list items and table cells, one in each line."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", prose):
        parts = re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=\s*\|)|\n(?=#)", paragraph)
        for part in parts:
            line = " ".join(part.split())
            found += re.split(r"(?<!\\)\|", line) if line.startswith("|") else [line]
    return found


def _sentences(block: str) -> list[str]:
    text = _LINK.sub(r"\1", _INLINE.sub("code", block)).strip()
    cut = re.split(r"(?<=[.?!])[)*\"]*\s+(?=[A-Z(*\"`]|code)|:\s+(?=[A-Z])", text)
    return [each for each in cut if _words(each) > 1]


def _words(text: str) -> int:
    return sum(1 for word in text.split() if _WORD.search(word))


def main() -> None:
    """Print a line for each page and their sum."""
    pages = [count(name) for name in sys.argv[1:] or user_pages()]
    for each in pages:
        found = f"{len(each.long):5} of {each.sentences:4} long, {len(each.wide):3} wide"
        print(f"{each.words:6} words, {found}  {each.name}")
        if sys.argv[1:]:
            print(*each.long, *each.wide, sep="\n")
    words, long, sentences, wide = (
        sum(each)
        for each in zip(
            *((p.words, len(p.long), p.sentences, len(p.wide)) for p in pages), strict=True
        )
    )
    print(f"{words:6} words, {long} of {sentences} sentences over {LONG}, {wide} lines over {WIDE}")


if __name__ == "__main__":
    main()
