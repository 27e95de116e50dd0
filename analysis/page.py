"""Build a self-contained HTML page of sections, tables and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from matplotlib.figure import Figure

from hpcgnn.analysis.figures import IN_THE_DARK, inline_svg

_LIGHT = "".join(f"--c{colour[1:]}:{colour};" for colour in IN_THE_DARK)
_DARK = "".join(f"--c{colour[1:]}:{lighter};" for colour, lighter in IN_THE_DARK.items())
_COLOURS = f"""
:root{{color-scheme:light dark;--ink:#1b2330;--quiet:#5a6675;--rule:#dde2e8;--card:#fff;
--ground:#f4f6f8;--accent:#0b5cad;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{--ink:#e4e8ee;--quiet:#9aa7b6;--rule:#353f4c;
--card:#1a2029;--ground:#11161d;--accent:#6cb2f5;{_DARK}}}}}
"""
_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main,footer{max-width:1720px;margin:0 auto;padding:0 20px}
header{padding-top:24px}h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:36px 0 8px;scroll-margin-top:12px}
p{margin:4px 0 10px;max-width:80ch}.quiet,footer{color:var(--quiet);font-size:.9rem}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 0}a{color:var(--accent)}
.answers{background:var(--card);border:1px solid var(--rule);border-left:4px solid var(--accent);
border-radius:8px;padding:10px 16px;margin:8px 0;max-width:110ch}
.answers dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 16px;margin:0}
.answers dt{font-weight:600}.answers dd{margin:0;overflow-wrap:anywhere}
pre{margin:10px 0 2px;padding:8px 12px;background:var(--ground);border-radius:6px;font-size:.87rem;
overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
.figures{align-items:start;display:grid;gap:14px;margin:8px 0;
grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr))}
figure{margin:0;padding:12px 12px 8px;background:var(--card);border:1px solid var(--rule);
border-radius:8px;display:flex;flex-direction:column}
figure svg{width:100%;max-width:520px;height:auto;display:block;margin:0 auto}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif!important}
figcaption{font-weight:600;margin-bottom:6px}figure .note{color:var(--quiet);font-size:.85rem;
margin:8px 0 2px}
.table{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:8px;
margin:8px 0;max-width:max-content}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
tr:last-child td{border-bottom:0}
th:first-child,td:first-child{text-align:left}td.text,th.text{text-align:left}
td{vertical-align:top}td.long{white-space:normal;overflow-wrap:anywhere;min-width:30em;text-align:left}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid
var(--accent)}th[aria-sort] button:after{content:" \\2191"}th[aria-sort=descending] button:after{
content:" \\2193"}
details{margin:10px 0;border:1px solid var(--rule);border-radius:8px;padding:8px 14px}
summary{cursor:pointer;font-weight:600;overflow-wrap:anywhere}
footer{margin-top:40px;padding-bottom:28px}
.stacked{max-width:none}.stacked td{justify-content:start!important;text-align:left!important}
.stacked td:before{width:6.5em}
@media(max-width:600px){.answers dl{grid-template-columns:1fr;gap:0}.answers dd{margin-bottom:8px}
header,main,footer{padding-left:12px;padding-right:12px}
details{padding:8px 8px}figure{padding:10px 8px 6px}
.table{max-width:none;overflow:visible}}
@media print{:root{color-scheme:light;--ink:#000;--quiet:#444;--rule:#bbb;--card:#fff;--ground:#fff;
--accent:#000}body{font-size:10pt}nav{display:none}.figures{grid-template-columns:1fr 1fr}
figure,tr{break-inside:avoid}h2{break-after:avoid}details{border:0;padding:0}
.table{overflow:visible;border:0}th,td{padding:2px 5px;white-space:normal}}
"""
_CARDS = """
&,& tbody,& tr,& td{display:block}& thead{display:none}
& tr{padding:6px 0;border-bottom:1px solid var(--rule)}& tr:last-child{border-bottom:0}
& td,& td.long{display:flex;justify-content:space-between;gap:14px;border:0;padding:2px 12px;
white-space:normal;overflow-wrap:anywhere;text-align:right;min-width:0}& td:empty{display:none}
& td:before{content:attr(data-name);color:var(--quiet);text-align:left;flex:none;max-width:50%}
& td:first-child{font-weight:600}& td:first-child:before{content:none}
"""
"""Rows of a table as cards, one line per cell with its column's name; & is the CSS selector."""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const sign = down ? -1 : 1;
    [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
      if (isNaN(m) && isNaN(n)) return sign * x.localeCompare(y);
      return isNaN(m) ? 1 : isNaN(n) ? -1 : sign * (m - n);
    }).forEach(row => table.tBodies[0].append(row));
  }));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(
  each => { each.open = true; }));
"""


_LEFT = ' class="text"'


def _style() -> str:
    narrow = f"@media screen and (max-width:600px){{{_CARDS.replace('&', 'table')}}}"
    return _COLOURS + _STYLE + _CARDS.replace("&", ".stacked table") + narrow


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text and the number to sort by; `long` texts may wrap."""

    text: str
    key: float | None = None
    long: bool = False


@dataclass(frozen=True)
class FigureOf:
    """A figure with its caption, and a note about what it shows."""

    caption: str
    draw: Callable[[], Figure]
    note: str = ""


@dataclass
class Page:
    """A page under construction; its parts appear in the order of the calls.

    `about` is a line below the title.
    """

    title: str
    about: str
    _parts: list[str] = field(default_factory=list)
    _sections: list[str] = field(default_factory=list)
    num_figures: int = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return sum(map(len, self._parts))

    def section(self, title: str, text: str = "") -> None:
        """Begin a section, with a link to it at the top of the page."""
        self._sections.append(title)
        number = len(self._sections)
        self._parts.append(f'<h2 id="s{number}">{escape(title)}</h2>')
        self.text(text)

    def text(self, text: str) -> None:
        """Add a paragraph, unless `text` is empty."""
        if text:
            self._parts.append(f'<p class="quiet">{escape(text)}</p>')

    def answers(self, sentences: Sequence[tuple[str, str]], command: str) -> None:
        """Add sentences, each with a one-word heading, and a command to copy."""
        items = "".join(
            f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in sentences
        )
        self._parts.append(
            f'<div class="answers"><dl>{items}</dl><pre tabindex="0">{escape(command)}</pre></div>'
        )

    def fold(self, title: str, *, opened: bool) -> None:
        """Begin a part that a reader can collapse; `unfold` ends it."""
        self._parts.append(f"<details{' open' * opened}><summary>{escape(title)}</summary>")

    def unfold(self) -> None:
        """End the part begun by `fold`."""
        self._parts.append("</details>")

    def figures(self, figures: Sequence[FigureOf]) -> None:
        """Add figures, side by side where there is room."""
        if not figures:
            return
        self._parts.append('<div class="figures">')
        for figure in figures:
            self.num_figures += 1
            note = f'<div class="note">{escape(figure.note)}</div>' if figure.note else ""
            self._parts.append(
                f"<figure><figcaption>{escape(figure.caption)}</figcaption>"
                f"{inline_svg(figure.draw, self.num_figures)}{note}</figure>"
            )
        self._parts.append("</div>")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Cell]],
        *,
        stacked: bool = False,
    ) -> None:
        """Add a table that a reader can sort by any column; the first column names the rows.

        On narrow screens, and always in a `stacked` table, the cells of a row are below each other.
        """
        left = {
            column
            for row in rows
            for column, cell in enumerate(row)
            if isinstance(cell, str) or (cell.key is None and cell.text)
        }
        heads = "".join(
            f'<th scope="col"{_LEFT * (column in left)}>'
            f'<button type="button">{escape(name)}</button></th>'
            for column, name in enumerate(columns)
        )
        body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in rows)
        kind = "table stacked" if stacked else "table"
        self._parts.append(
            f'<div class="{kind}" tabindex="0"><table class="sorts"><thead><tr>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def html(self) -> str:
        """Return the page."""
        links = "".join(
            f'<a href="#s{number}">{escape(name)}</a>'
            for number, name in enumerate(self._sections, start=1)
        )
        # The empty icon keeps browsers from requesting one.
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<link rel="icon" href="data:,"><title>{escape(self.title)}</title>'
            f"<style>{_style()}</style></head><body><header><h1>{escape(self.title)}</h1>"
            f'<p class="quiet">{escape(self.about)}</p><nav>{links}</nav></header><main>'
            f"{''.join(self._parts)}</main><footer>Written by hpcgnn analyse report. Click a "
            f"column's name to sort by it; point at a bar to read its value.</footer>"
            f"<script>{_SCRIPT}</script></body></html>\n"
        )


def _cell(column: str, cell: str | Cell) -> str:
    shown = Cell(cell) if isinstance(cell, str) else cell
    key = "" if shown.key is None else f' data-key="{shown.key:.15g}"'
    kind = ' class="long"' if shown.long else _LEFT if shown.key is None else ""
    return f'<td data-name="{escape(column)}"{key}{kind}>{escape(shown.text)}</td>'
