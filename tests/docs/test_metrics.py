"""The page of the metrics is a contract: it has exactly what a scrape returns.

To rewrite the table: `cd tests; python -m docs.test_metrics`. The text around it is kept.
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from docs.pages import DOCS, codes, rows, text
from headrace.serve.exposition import Exposition
from headrace.serve.metrics import FAMILIES, HISTOGRAMS
from services.monitored import full_monitor

PAGE = DOCS / "reference" / "metrics.md"
_BEGIN, _END = "<!-- metrics: from the code -->\n", "<!-- end of metrics -->"


def metrics_table() -> str:
    """The metrics of pipelines as a Markdown table."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.exposed}` | {family.kind} | {labels} | {family.meaning} |")
    lines += [f"| `{each.name}` | histogram |  | {each.meaning} |" for each in HISTOGRAMS]
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """The page with a new table."""
    head, _, rest = page.partition(_BEGIN)
    return head + _BEGIN + metrics_table() + _END + rest.partition(_END)[2]


def test_the_table_is_that_of_the_code():
    assert rewritten(PAGE.read_text()) == PAGE.read_text()


def test_a_scrape_has_the_metrics_of_the_page_and_no_others():
    body, _ = Exposition(full_monitor()).render("")
    scraped = {}
    for family in text_string_to_metric_families(body.decode()):
        names = {"le"} if family.type == "histogram" else set()
        exposed = f"{family.name}_total" if family.type == "counter" else family.name
        scraped[exposed] = (family.type, {label for each in family.samples for label in each.labels} - names)
    table = [row for row in rows(text("docs/reference/metrics.md")) if len(row) == 4]
    documented = {codes(row[0])[0]: (row[1], set(codes(row[2]))) for row in table}
    pipelines = {family.exposed for family in FAMILIES} | {family.name for family in HISTOGRAMS}
    expected = {
        name: (kind, labels | ({"pipeline"} if name in pipelines else set()))
        for name, (kind, labels) in documented.items()
        if name.startswith("headrace_")
    }
    assert scraped == expected


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
