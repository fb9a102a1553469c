"""Links between the pages of the repository lead somewhere, and docs/README.md is an index of all that users read."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "tests", "bench", "examples", "python")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md") if ".venv" not in page.parts)])


def text_of(page):
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)


def heading_links(page):
    """What `#…` may stand behind the name of a page."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    broken, links = [], 0
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
            if re.match(r"[a-z]+:", link):
                continue
            links += 1
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (heading and heading not in heading_links(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert links > 50
    assert broken == []


def test_the_index_has_every_page():
    index = text_of(ROOT / "docs/README.md")
    listed = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)\s]+)\)", index)}
    users = [ROOT / folder / "README.md" for folder in ("python", "src", "src/kernels", "bench")]
    pages = {*(ROOT / "docs").glob("*.md"), *users, *ROOT.glob("*.md")} - {ROOT / "README.md", ROOT / "docs/README.md"}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - listed) == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
