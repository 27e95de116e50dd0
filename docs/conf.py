"""The documentation as a site: ``sphinx-build -W -c docs . build/site``.

The pages are plain Markdown that also reads as files. What a site needs beside them is made here:
the table of contents from docs/index.md, and what commands say of themselves.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert as mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

import hpcgnn
from hpcgnn.__main__ import COMMANDS
from hpcgnn.commands.completion import helps_of, listed_names
from hpcgnn.config.file import describe_keys

ROOT = Path(__file__).parents[1]

project = "hpcgnn"
author = "the developers of hpcgnn"
release = hpcgnn.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
root_doc = "README"
include_patterns = ["README.md", "docs/**.md", "benchmarks/README.md", "benchmarks/results/*.md"]
# Sphinx walks through every folder that is not excluded.
exclude_patterns = [".*", "build", "data", "runs"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
smartquotes = False
highlight_language = "text"
html_theme = "furo"
html_title = f"hpcgnn {release}"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
html_math_renderer = "mathml"
html_show_sourcelink = html_copy_source = html_show_copyright = False
pygments_style, pygments_dark_style = "default", "monokai"

_CARDS = """
::::{grid} 2 2 3 3
:gutter: 2

:::{grid-item-card} Tour
:link: docs/tour
:link-type: doc
The main commands, in five minutes.
:::
:::{grid-item-card} Your tables
:link: docs/tables
:link-type: doc
From tables of nodes and edges to predictions.
:::
:::{grid-item-card} On a cluster
:link: docs/slurm
:link-type: doc
From `site.env` to many hosts.
:::
:::{grid-item-card} From Python
:link: docs/library
:link-type: doc
Your own loop, model and exchange.
:::
:::{grid-item-card} What works with what
:link: docs/matrix
:link-type: doc
Models, exchanges, schedules and modes.
:::
:::{grid-item-card} Benchmarks
:link: docs/measured
:link-type: doc
Beside DGL, PyG and SAR, with what fell short.
:::
::::
"""
_LISTING = ("analyse", "generate")
_LINK = re.compile(r"^- \[[^\]]*\]\(([^)]+)\.md\)", re.MULTILINE)


def table_of_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Give the first page a table of contents for each heading of docs/index.md."""
    if name == "benchmarks/README":
        source[0] += _toctree("Results", "results/*", ":glob:\n")
    if name.startswith("benchmarks/results/"):
        # Searching is for pages that tell how to do things; results would be the first hits.
        source[0] = f"---\nnosearch: true\n---\n\n{source[0]}"
    if name != app.config.root_doc:
        return
    start, install, rest = source[0].partition("\n## Install\n")
    source[0] = start + _CARDS + install + rest
    sections = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]
    # The page that lists them all is the first of them.
    listed = ["docs/index"]
    for section in sections:
        listed += [os.path.normpath(f"docs/{page}") for page in _LINK.findall(section)]
        caption, pages = section.partition("\n")[0], [page for page in listed if page != name]
        source[0] += _toctree(caption, "\n".join(pages))
        listed = []


def _toctree(caption: str, pages: str, more: str = "") -> str:
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n{more}\n{pages}\n```\n"


class CommandHelp(SphinxDirective):
    """What all commands say to --help."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command, its kinds and its analyses behind it."""
        found: list[nodes.Node] = []
        helps = helps_of([*COMMANDS, "convert programs"])
        kinds = [f"{name} {kind}" for name in _LISTING for kind in listed_names(helps[name])]
        helps |= helps_of(kinds)
        for words, text in sorted(helps.items()):
            name = f"hpcgnn {words}"
            section = nodes.section(ids=[name.replace(" ", "-")])
            section += nodes.title(text=name)
            section += nodes.literal_block(text=text, language="text")
            found.append(section)
        return found


class Keys(SphinxDirective):
    """The keys of the configuration, a table for each section."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each table of the configuration."""
        tables: dict[str, list[tuple[str, str, str]]] = {}
        for row in describe_keys():
            tables.setdefault(row[0].partition(".")[0], []).append(row)
        found: list[nodes.Node] = []
        for name, rows in tables.items():
            text = f"## [{name}]\n\n| key | default | meaning |\n|---|---|---|\n"
            text += "".join(f"| `{key}` | `{value}` | {_cell(of)} |\n" for key, value, of in rows)
            found += self.parse_text_to_nodes(text, allow_section_headings=True)
        return found


def _cell(text: str) -> str:
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", text)


def inline_formula(page: HTML5Translator, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers set without a script."""
    page.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def displayed_formula(page: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    page.body.append(mathml(node.astext(), display="block"))
    raise nodes.SkipNode


def first_page(app: Sphinx, fault: Exception | None) -> None:
    """Let the folder open with its first page."""
    if fault is None and app.builder.format == "html":
        target = f"{app.config.root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
        Path(app.outdir, "index.html").write_text(page + f'<a href="{target}">hpcgnn</a>\n')


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what is made here."""
    app.connect("source-read", table_of_contents)
    app.connect("build-finished", first_page)
    app.add_html_math_renderer(
        "mathml", inline_renderers=(inline_formula, None), block_renderers=(displayed_formula, None)
    )
    app.add_directive("command-help", CommandHelp)
    app.add_directive("configuration-keys", Keys)
    return {"version": json.dumps(release), "parallel_read_safe": True}
