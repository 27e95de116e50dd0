"""User pages are short, their sentences too, and no line of code is wider than a page."""

import pytest

from tests.words import LONG, WIDE, Page, count, user_pages

MOST_WORDS = 30_000
LONG_SHARE = 0.03


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return [count(name) for name in user_pages()]


def test_code_fits_a_page(pages: list[Page]) -> None:
    assert [line for page in pages for line in page.wide] == [], f"over {WIDE} columns"


def test_sentences_are_short(pages: list[Page]) -> None:
    long = [sentence for page in pages for sentence in page.long]
    share = len(long) / sum(page.sentences for page in pages)
    assert share <= LONG_SHARE, f"{share:.1%} have over {LONG} words:\n" + "\n".join(long)


def test_users_read_no_book(pages: list[Page]) -> None:
    assert sum(page.words for page in pages) <= MOST_WORDS


def test_counting(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("tests.words.ROOT", tmp_path)
    words = " ".join(["word"] * 31)
    text = f"# A b\n\nOne two. Three four.\n\n- {words}.\n\n```bash\n{'x' * 81}\n```\n"
    (tmp_path / "page.md").write_text(text)
    page = count("page.md")
    assert (page.sentences, len(page.long), len(page.wide)) == (4, 1, 1)
    assert page.long == (f"- {words}.",)
