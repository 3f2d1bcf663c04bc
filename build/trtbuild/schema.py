"""``trtbuild schema``: the recipe's JSON Schema, for editors and scripts."""

from __future__ import annotations

import json

import click

from trtbuild.recipe import json_schema


def schema_text() -> str:
    """The schema as it is printed and published."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of recipes, for editors and scripts."""
    click.echo(schema_text(), nl=False)
