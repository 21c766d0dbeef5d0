"""The site of the documentation: `make site`. The pages are those of the repository, at their own paths.

`tests/support/site.py` puts them into a folder of their own first, with what they link to, so that each link is the
same on the site and in the repository. Only the order of pages is written here.
"""

from typing import Any

PAGES = {
    "Start": ["docs/guides/install", "docs/guides/tutorial", "docs/guides/cookbook", "docs/guides/faq",
              "docs/concepts/glossary", "docs/concepts/comparison", "docs/README"],
    "Captures": ["docs/guides/first-look", "docs/guides/slow-link", "docs/guides/where-packets-wait",
                 "docs/guides/which-flow-is-slow", "docs/guides/one-way-mirror", "docs/guides/find-the-slow-hop",
                 "docs/guides/many-captures"],
    "Live": ["docs/guides/live-in-ten-minutes", "docs/guides/many-agents", "docs/guides/in-the-kernel",
             "docs/guides/latency-aware-balancer"],
    "Python": ["docs/guides/python", "docs/guides/notebook", "docs/guides/own-method"],
    "Concepts": ["docs/concepts/*"],
    "Commands": ["docs/reference/cli", *(f"docs/reference/{name}" for name in (
                 "info", "rtt", "response", "telemetry", "report", "oneway", "cut", "flows", "marking", "path", "plan",
                 "watch", "stamp", "agent", "collect", "balance", "compare", "simulate", "score", "doctor"))],
    "Reference": ["docs/reference/*"],
    "Project": ["experiments/README", "benchmarks/README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "SECURITY", "*",
                "**/README"],
}  # fmt: skip

project = "wirelag"
author = copyright = "The wirelag authors"
root_doc = "README"
source_suffix = {".md": "markdown"}
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
html_theme = "furo"
html_title = "wirelag"
html_static_path, html_css_files = ["static"], ["wide.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "monokai"
# JSON and consoles with "..." in them are no programs.
suppress_warnings = ["misc.highlighting_failure"]


def _with_contents(app: Any, name: str, source: list[str]) -> None:
    if name != root_doc:
        return
    listed: set[str] = set()
    for title, pages in PAGES.items():
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n:glob:\n\n"
        for page in pages:
            found = sorted(one for one in app.env.found_docs if _matches(one, page) and one not in listed | {root_doc})
            source[0] += "".join(f"/{one}\n" for one in found)
            listed |= set(found)
        source[0] += "```\n"


def _matches(name: str, pattern: str) -> bool:
    from pathlib import PurePath

    if pattern == "**/README":
        return PurePath(name).name == "README"
    return PurePath(name).parent == PurePath(pattern).parent and PurePath(name).match(pattern)


def setup(app: Any) -> None:
    """Add the contents to the first page."""
    app.connect("source-read", _with_contents)
