"""The dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from trtserve.api.context import ServerContext
from trtserve.loading import load_engine
from trtserve.overrides import Overrides

from .tiny import write_tiny_engine

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "trtlookup.json"


def test_every_metric_of_the_dashboard_is_on_the_metrics_page(tmp_path: Path) -> None:
    engine, tokenizer = load_engine(write_tiny_engine(tmp_path / "tiny"), Overrides(threads=1))
    try:
        metrics = ServerContext(engine, tokenizer).metrics
        metrics.http_requests.labels("GET", "/health", "200").inc()
        page = metrics.exposition("text/plain")[0].decode()
    finally:
        engine.close()
    families = list(text_string_to_metric_families(page))
    known = {sample.name for family in families for sample in family.samples}
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    queries += [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"trtserve_\w+", query)}
    assert len(asked) > 20
    assert asked <= known
    grouped = {x for query in queries for group in re.findall(r"by \(([^)]*)\)", query) for x in group.split(", ")}
    assert grouped <= labels


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
