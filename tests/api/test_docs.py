"""The pages that describe the API name what there is, all of it."""

from __future__ import annotations

import re
from pathlib import Path

from trtserve.api.fields import IGNORED
from trtserve.api.schema import ChatBody, CompletionBody

from .conftest import Served

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_is_documented_and_every_documented_one_exists(shared: Served) -> None:
    text = shared.get("/metrics").text
    types = re.findall(r"^# TYPE trtserve_(\S+) (\S+)", text, re.MULTILINE)
    served = {name for name, _ in types if not name.endswith("_created")}
    rows = re.findall(r"^\| (`[^|]+`) \| \w+ \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    documented = {re.sub(r"\{.*\}", "", name) for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert documented == served


def test_every_field_is_documented() -> None:
    page = (DOCS / "api.md").read_text()
    for name in {*ChatBody.model_fields, *CompletionBody.model_fields, *IGNORED}:
        assert f"`{name}" in page or f"`{name}:" in page, name
