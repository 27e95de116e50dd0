"""The chart of README.md shows the numbers of the result page."""

from benchmarks.hosts_figure import FIGURE, PAGE, draw, links


def test_the_chart_is_drawn_from_the_result_page() -> None:
    found = links(PAGE.read_text("utf-8"))
    assert [each.speed for each in found] == ["1 Gbit/s", "200 Mbit/s"]
    assert FIGURE.read_text("utf-8") == draw(found)


def test_the_readme_quotes_the_chart() -> None:
    fast, slow = links(PAGE.read_text("utf-8"))
    text = " ".join((FIGURE.parents[2] / "README.md").read_text("utf-8").split())
    for link in (fast, slow):
        ours, *_ = link.seconds
        fastest = min(link.seconds[2:])
        assert f"{ours:.2f} s against {fastest:.2f} s" in text
