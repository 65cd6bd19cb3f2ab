"""Our pages are written for GitHub. For MkDocs, headings get the anchors that GitHub makes, links to files that are not
pages (source, tests, results) lead to the repository, and what Python-Markdown reads differently is written its way.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SHOWN: Final = {".md", ".png", ".svg"}  # what the site itself has
_LINK: Final = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE: Final = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~) *$)", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`[^`]+`")
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_IN_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) |\s")  # an item, or a line that continues one
_NESTED: Final = re.compile(r" {2,3}[-*] ")
_SHIM: Final = "https://unpkg.com/iframe-worker/shim"  # file_worker.js takes its place
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel="?canonical))\b[^>]*?\b(?:src|href|srcset)="?(?P<address>(?:https?:)?//[^\s">]+)"""
)
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|/", re.IGNORECASE)


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    return for_site(markdown, page.file.src_uri, config.extra["repository"])


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    return output.replace(_SHIM, posixpath.relpath("site/file_worker.js", posixpath.dirname(page.url) or "."))


def on_post_template(output: str, *, template_name: str, config: Any) -> str:
    return output.replace(_SHIM, "/site/file_worker.js")  # 404.html, which has no place of its own


def on_post_build(*, config: Any) -> None:
    for path in Path(config.site_dir).rglob("*.html"):
        if elsewhere := loaded_from_elsewhere(path.read_text(encoding="utf-8")):
            raise SystemExit(f"{path} loads {', '.join(elsewhere)}: a page must load nothing from other hosts")


def loaded_from_elsewhere(html: str) -> list[str]:
    """Scripts, styles, fonts and images that a browser would get from another host. A plain link is not loaded."""
    return [match["address"] for match in _LOADED.finditer(html)]


def slug(title: str, separator: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", separator)


def for_site(markdown: str, page: str, repository: str) -> str:
    """`page` is relative to docs/. Fenced blocks stay as they are."""
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(_replacement(page, repository), _as_python_markdown(part)) for part in parts[::2]]
    return "".join(parts)


def _as_python_markdown(text: str) -> str:
    """A list needs an empty line before it, and four spaces inside another list; `\\|` in code in a table is `|`."""
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("|"):
            line = _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        elif _NESTED.match(line):
            line = "    " + line.lstrip()
        elif _ITEM.match(line) and lines and lines[-1] and not _IN_ITEM.match(lines[-1]):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _replacement(page: str, repository: str) -> Callable[[re.Match[str]], str]:
    def replace(link: re.Match[str]) -> str:
        if _ELSEWHERE.match(link["target"]):
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["target"]))
        if path.startswith("docs/") and PurePosixPath(path).suffix in SHOWN:
            return link[0]
        if not (ROOT / path).exists():
            return link[0]  # MkDocs reports it
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{repository}/{kind}/main/{path}{link['anchor'] or ''}"

    return replace
