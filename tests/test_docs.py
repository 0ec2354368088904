"""The pages: every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: lower case, punctuation left out, hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    links = [a or b for a, b in LINK.findall(page.read_text())]
    missing = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_wrong_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One: two, three\n```\n# no heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text('[1](b.md#one-two-three) [2](b.md#no-heading) [3](c.md) <img src="d.png"> [4](https://x.org/c.md)')
    assert broken(page) == ["b.md#no-heading", "c.md", "d.png"]
