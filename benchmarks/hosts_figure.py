"""``python -m benchmarks.hosts_figure``: draw docs/figures/hosts.svg from the comparison with SAR.

Every number comes from the table under "Four emulated hosts" of the results page. The file is
written without a library, so that a test can compare it character by character.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "sar_2cores_202611.md"
FIGURE = ROOT / "docs" / "figures" / "hosts.svg"

LEFT = 210
WIDTH = 760
BAR = 22
OURS, THEIRS = "#0072b2", "#b8b8b8"
ROWS = (
    ("hpcgnn, joint", OURS),
    ("hpcgnn, aware (default)", OURS),
    ("SAR, one-shot + MFG", THEIRS),
    ("SAR, one-shot", THEIRS),
    ("SAR, sequential (default)", THEIRS),
)


@dataclass(frozen=True)
class Link:
    """A link speed, and the seconds per epoch of each of `ROWS`."""

    speed: str
    seconds: tuple[float, ...]


def links(page: str) -> list[Link]:
    """Return the rows of the table, float32 only."""
    table = page.partition("## Four emulated hosts")[2]
    found = []
    for line in re.findall(r"^\| (\d+ [MG]bit/s \|.*)\|$", table, re.MULTILINE):
        speed, ours, _, theirs, _ = (cell.strip() for cell in line.split("|"))
        aware, joint = map(float, ours.split(", "))
        sequential, one_shot, restricted = map(float, theirs.split(", "))
        found.append(Link(speed, (joint, aware, restricted, one_shot, sequential)))
    return found


def draw(found: list[Link]) -> str:
    """Return the figure: a group of bars for each link speed."""
    scale = (WIDTH - LEFT - 60) / max(max(each.seconds) for each in found)
    body, y = [], 52
    for link in found:
        body.append(f'<text x="16" y="{y + 4}" class="head">links of {link.speed}</text>')
        y += 14
        for (name, colour), seconds in zip(ROWS, link.seconds, strict=True):
            middle, end = y + BAR / 2 + 4, LEFT + seconds * scale
            body += [
                f'<text x="{LEFT - 8}" y="{middle:.0f}" class="name">{name}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{seconds * scale:.1f}" height="{BAR - 4}" '
                f'fill="{colour}"/>',
                f'<text x="{end + 6:.1f}" y="{middle:.0f}">{seconds:.2f}</text>',
            ]
            y += BAR
        y += 26
    title = "Seconds of a training epoch on four emulated hosts, lower is better"
    height = y - 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{title}">',
        "<style>text{font:14px sans-serif;fill:#222}.head{font-weight:bold}"
        ".title{font-size:16px;font-weight:bold}.name{text-anchor:end}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>',
        f'<text x="16" y="28" class="title">{title}</text>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(draw(links(PAGE.read_text("utf-8"))), "utf-8")
