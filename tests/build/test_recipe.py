"""Recipes: what is accepted, and what is said about what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from trtbuild import recipe as recipe_module
from trtbuild import targets
from trtbuild.errors import Problem, RecipeError
from trtbuild.recipe import json_schema, load_recipe
from trtbuild.recipe_source import Located, apply_overrides, read_file
from trtbuild.schema import schema_text
from trtbuild.targets.torch import TorchTarget

ROOT = Path(__file__).parents[2]
MINIMAL = "recipe: 1\nname: m\nmodel: {checkpoint: x}\ntarget: torch\n"
Write = Callable[[str], Path]


def problems(path: Path, *overrides: str) -> list[Problem]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return list(caught.value.problems)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_recipes_load_and_match_the_published_schema(path: Path) -> None:
    raw = yaml.safe_load(path.read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(raw)
    if raw["target"] in targets.names():
        assert load_recipe(path).recipe.name == path.stem


def test_defaults_are_those_of_the_runtime(recipe_file: Write) -> None:
    recipe = load_recipe(recipe_file(MINIMAL)).recipe
    assert (recipe.limits.max_batch_size, recipe.limits.max_seq_len, recipe.limits.prefill_chunk) == (8, 4096, 512)
    lookup = recipe.speculative.prompt_lookup
    assert lookup is not None
    assert (lookup.ngram, lookup.max_drafts, lookup.min_match, lookup.miss_backoff) == (4, 32, 8, 16)
    assert (lookup.max_seqs, lookup.batch_max_drafts, lookup.shared_cache.mb, lookup.shared_cache.scopes) == (
        32,
        8,
        0,
        4,
    )
    assert (recipe.speculative.drafter, recipe.speculative.num_drafts, recipe.speculative.exact_verify) == (
        "none",
        0,
        False,
    )


def test_resolved_recipe_is_a_recipe_that_resolves_to_itself(recipe_file: Write) -> None:
    first = load_recipe(recipe_file(MINIMAL), ["speculative.prompt_lookup=null", "limits.max_seq_len=100"]).recipe
    second = load_recipe(recipe_file(first.to_yaml())).recipe
    assert second.resolved() == first.resolved()
    assert first.resolved()["speculative"]["prompt_lookup"] is None


def test_every_problem_is_reported_with_line_key_value_and_what_is_allowed(recipe_file: Write) -> None:
    path = recipe_file(
        "recipe: 2\n"
        "name: 'bad name'\n"
        "model:\n"
        "  dtype: float64\n"
        "target: torhc\n"
        "limits: {max_batchsize: 8, max_seq_len: 4}\n"
        "speculative:\n"
        "  num_drafts: yes\n"
        "  prompt_lookup:\n"
        '    max_drafts: "12"\n'
        "    ngram: 65\n"
        "    shared_cache: [1]\n"
        "extra: 1\n"
    )
    found = {(p.where, p.key): p.message for p in problems(path)}
    assert found == {
        (f"{path}:1", "recipe"): "given 2; allowed: 1",
        (f"{path}:2", "name"): 'given "bad name"; allowed: text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$',
        (f"{path}:3", "model.checkpoint"): "is missing; allowed: text that is not empty",
        (f"{path}:4", "model.dtype"): ('given "float64"; did you mean float16? allowed: float32, float16, bfloat16'),
        (f"{path}:5", "target"): f'given "torhc"; did you mean torch? allowed: {", ".join(targets.names())}',
        (f"{path}:6", "limits.max_seq_len"): "given 4; allowed: an integer from 16 to 1048576",
        (f"{path}:6", "limits.max_batchsize"): (
            "is not a known key; did you mean max_batch_size? allowed: max_batch_size, max_seq_len, prefill_chunk"
        ),
        (f"{path}:8", "speculative.num_drafts"): "given true; allowed: an integer from 0 to 64",
        (f"{path}:10", "speculative.prompt_lookup.max_drafts"): 'given "12"; allowed: an integer from 1 to 64',
        (f"{path}:11", "speculative.prompt_lookup.ngram"): "given 65; allowed: an integer from 1 to 64",
        (f"{path}:12", "speculative.prompt_lookup.shared_cache"): "given [1]; allowed: a mapping of mb, scopes",
        (f"{path}:13", "extra"): found[f"{path}:13", "extra"],
    }
    assert found[f"{path}:13", "extra"].startswith("is not a known key; allowed: ")


def test_problems_come_in_the_order_of_the_file_and_overrides_last(recipe_file: Write) -> None:
    path = recipe_file("extra: 1\nlimits: {max_seq_len: 1}\n" + MINIMAL.replace("recipe: 1", "recipe: 9"))
    places = [p.where for p in problems(path, "speculative.exact_verify=maybe")]
    assert places == [f"{path}:1", f"{path}:2", f"{path}:3", "--set speculative.exact_verify=maybe"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("- 1\n", 1, "is not a mapping"),
        ("", 1, "is not a mapping"),
        ("just text\n", 1, "is not a mapping"),
        ("a: 1\nb: [1\n", 3, "is not valid YAML"),
        ("a: 1\n--- \nb: 2\n", 2, "is not valid YAML"),
        ("a: !!python/object:os.system x\n", 1, "is not valid YAML"),
        ("a: !!binary aGk=\n", 1, "is of a YAML type"),
        ('a: "\\ud800"\n', 1, "holds half a character"),
        ("a: *nowhere\n", 1, "is not valid YAML"),
        ("a: 1\nb: x\0y\n", 2, "is not valid YAML: has the character 0x0"),
        ("a: 1\n? [x]\n: 2\n", 2, "a key is not text"),
        ("a: &x {b: 1}\n<<: *x\n", 2, "merge keys are not allowed"),
        ("a: 1\nb: 2\na: 3\n", 3, "is given twice; first on line 1"),
        ("a: {b: 1, b: 2}\n", 1, "is given twice; first on line 1"),
        ("a: &a [*a]\n", 1, "is nested too deeply"),
    ],
)
def test_what_a_recipe_may_not_be_as_yaml(recipe_file: Write, text: str, line: int, message: str) -> None:
    path = recipe_file(text)
    (problem,) = problems(path)
    assert (problem.where, message in problem.message) == (f"{path}:{line}", True), problem


def test_all_duplicate_keys_are_reported_at_once(recipe_file: Write) -> None:
    found = problems(recipe_file("a: 1\na: 2\nb: {c: 1, c: 2}\n"))
    assert [p.key for p in found] == ["a", "b.c"]


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.yaml").write_text("# " + "x" * (1 << 20))
    for name, message in (
        ("missing.yaml", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("binary.yaml", "is not UTF-8 text"),
        ("large.yaml", "allowed: up to 1048576"),
        ("/dev/zero", "allowed: up to 1048576"),
    ):
        (problem,) = problems(tmp_path / name)
        assert message in problem.message


def test_aliases_cannot_expand_without_bound(recipe_file: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (problem,) = problems(recipe_file("\n".join(lines)))
    assert "holds too many values" in problem.message


def test_deep_nesting_is_refused_not_a_crash(recipe_file: Write) -> None:
    for depth in (100, 5_000):
        (problem,) = problems(recipe_file("a: " + "[" * depth + "]" * depth))
        assert "nested too deeply" in problem.message


def test_overrides_replace_values_and_create_sections(recipe_file: Write) -> None:
    path = recipe_file(MINIMAL + "speculative: {prompt_lookup: null}\n")
    recipe = load_recipe(
        path, ["limits.max_batch_size=3", "speculative.prompt_lookup.max_drafts=12", "name=n", "name=o"]
    ).recipe
    assert recipe.limits.max_batch_size == 3
    assert recipe.speculative.prompt_lookup is not None
    assert recipe.speculative.prompt_lookup.max_drafts == 12
    assert recipe.name == "o"


def test_what_is_not_mentioned_fits_the_context(recipe_file: Write) -> None:
    recipe = load_recipe(recipe_file(MINIMAL), ["limits.max_seq_len=16"]).recipe
    lookup = recipe.speculative.prompt_lookup
    assert lookup is not None
    assert (recipe.limits.prefill_chunk, lookup.max_drafts, lookup.batch_max_drafts) == (16, 15, 8)


def test_an_override_may_be_a_whole_section(recipe_file: Write) -> None:
    recipe = load_recipe(recipe_file(MINIMAL), ["limits={max_batch_size: 2, max_seq_len: 64}"]).recipe
    assert (recipe.limits.max_batch_size, recipe.limits.max_seq_len) == (2, 64)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limits", "is not KEY=VALUE"),
        ("=1", "is not KEY=VALUE"),
        ("limits..x=1", "is not KEY=VALUE"),
        ("name.x=1", "not a section"),
        ("limits=[", "is not valid YAML"),
        ("limits={a: 1, a: 2}", "is given twice"),
        ("limits.max_batch_size=0", "given 0; allowed: an integer from 1 to 256"),
        ("limits.max_batch_size=", "given null; allowed: an integer from 1 to 256"),
        ("limits.max_batch_siz=1", "did you mean max_batch_size?"),
    ],
)
def test_a_wrong_override_is_named(recipe_file: Write, override: str, message: str) -> None:
    (problem,) = problems(recipe_file(MINIMAL), override)
    assert problem.where == f"--set {override}"
    assert message in problem.message


@pytest.mark.parametrize(
    "value", ["!!int ''", "!!bool x", "9" * 5000, "1" + "0" * 400, ".nan", "2024-01-01", "!!int abc"]
)
def test_odd_numbers_are_refused_like_any_other_value(recipe_file: Write, value: str) -> None:
    (problem,) = problems(recipe_file(MINIMAL + f"limits:\n  max_batch_size: {value}\n"))
    assert problem.key == "limits.max_batch_size"
    assert problem.message.endswith("allowed: an integer from 1 to 256")
    assert len(problem.message) < 120


@pytest.mark.parametrize("word", ["null", "false", "off", "no"])
def test_prompt_lookup_is_turned_off(recipe_file: Write, word: str) -> None:
    written = load_recipe(recipe_file(MINIMAL + f"speculative:\n  prompt_lookup: {word}\n")).recipe
    overridden = load_recipe(recipe_file(MINIMAL), [f"speculative.prompt_lookup={word}"]).recipe
    assert written.speculative.prompt_lookup is None
    assert overridden.speculative.prompt_lookup is None


def test_prompt_lookup_true_is_refused_with_what_is_allowed(recipe_file: Write) -> None:
    (problem,) = problems(recipe_file(MINIMAL), "speculative.prompt_lookup=true")
    assert "or null or false" in problem.message


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (
            ["limits.max_seq_len=16", "speculative.prompt_lookup.max_drafts=16"],
            "speculative.prompt_lookup.max_drafts",
            "needs 17 rows in one verify; allowed: up to 15",
        ),
        (
            ["limits.max_seq_len=16", "speculative.prompt_lookup.batch_max_drafts=20"],
            "speculative.prompt_lookup.batch_max_drafts",
            "given 20, which needs 21 rows",
        ),
        (["speculative.drafter=draft_model", "speculative.num_drafts=2"], "draft_model", "is missing"),
        (["draft_model={checkpoint: y}"], "draft_model", "speculative.drafter is none"),
        (["speculative.num_drafts=2"], "speculative", "num_drafts is 2 but drafter is none; allowed: 0"),
        (["speculative.drafter=mtp", "speculative.num_drafts=2"], "speculative.drafter", "allowed with target torch"),
        (["triton={kind: cpu, gpus: [0]}"], "triton.gpus", "is given with kind cpu; allowed: no gpus, or kind"),
        (["triton.gpus=[0, 1, 0]"], "triton.gpus", "names GPU 0 twice; allowed: each id once"),
        (["target=tensorrt", "triton.kind=cpu"], "triton.kind", "given cpu, but target tensorrt computes on GPUs"),
        (["target=tensorrt_llm", "triton.threads=4"], "triton.threads", "given 4, but TensorRT-LLM computes on GPUs"),
        (
            ["target=tensorrt_llm", "tensorrt_llm.tensor_parallel_size=2", "triton.gpus=[0, 1, 2]"],
            "triton.gpus",
            "given 3 ids, but the engine spans 2 GPUs; allowed: a multiple of 2",
        ),
    ],
)
def test_values_that_do_not_go_together(recipe_file: Write, overrides: list[str], key: str, message: str) -> None:
    found = problems(recipe_file(MINIMAL), *overrides)
    assert any(p.key == key and message in p.message for p in found), found


def test_a_shared_cache_share_must_be_worth_having(recipe_file: Write) -> None:
    shared = pytest.importorskip("trtserve.lookup.shared")
    path, key = recipe_file(MINIMAL), "speculative.prompt_lookup.shared_cache"
    for scopes in (1, 128, 170):
        shared.SharedCache(1, scopes, 8)
        load_recipe(path, [f"{key}={{mb: 1, scopes: {scopes}}}"])
    for scopes in (171, 256):
        with pytest.raises(ValueError, match=r"1,?024"):
            shared.SharedCache(1, scopes, 8)
        (problem,) = problems(path, f"{key}={{mb: 1, scopes: {scopes}}}")
        assert problem.key == f"{key}.scopes"
        assert "allowed: up to 170 scopes, for at least 1024 tokens each" in problem.message
    load_recipe(path, [f"{key}.scopes=256"])  # off: its share is nobody's concern


def test_a_prefill_chunk_is_no_longer_than_a_sequence(recipe_file: Write) -> None:
    for overrides, chunk in (
        (["limits.max_seq_len=64"], 64),
        (["limits.max_seq_len=64", "limits.prefill_chunk=65"], 64),
        (["limits.max_seq_len=64", "limits.prefill_chunk=32"], 32),
    ):
        assert load_recipe(recipe_file(MINIMAL), overrides).recipe.limits.prefill_chunk == chunk


def test_the_deployment_is_a_part_of_the_resolved_recipe_where_there_is_one(recipe_file: Write) -> None:
    assert "triton" not in load_recipe(recipe_file(MINIMAL)).recipe.resolved()
    recipe = load_recipe(recipe_file(MINIMAL + "triton: {instances: 2, gpus: [3, 5]}\n")).recipe
    section = recipe.resolved()["triton"]
    assert (section["instances"], section["gpus"], section["max_queue"], section["kind"]) == (2, [3, 5], 256, "auto")
    assert yaml.safe_load(recipe.to_yaml())["triton"] == section


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("triton.instances=0", "triton.instances", "given 0; allowed: an integer from 1 to 128"),
        ("triton.kind=host", "triton.kind", 'given "host"; allowed: auto, cpu, gpu'),
        ("triton.gpus=[0, -1]", "triton.gpus[1]", "given -1; allowed: an integer from 0 to 1023"),
        ("triton.gpus=0", "triton.gpus", "given 0; allowed: a list of: an integer from 0 to 1023"),
        ("triton.model_name=a/b", "triton.model_name", 'given "a/b"; allowed: text that matches'),
        ("triton.max_queue=many", "triton.max_queue", 'given "many"; allowed: an integer from 1 to 1048576'),
        ("triton.version=1.0", "triton.version", "given 1.0; allowed: an integer from 1 to 2147483647"),
        ("triton.threads=0", "triton.threads", "given 0; allowed: an integer from 1 to 256 or null"),
        ("triton.instance=2", "triton.instance", "is not a known key; did you mean instances?"),
    ],
)
def test_a_deployment_is_refused_by_key(recipe_file: Write, override: str, key: str, message: str) -> None:
    (problem,) = problems(recipe_file(MINIMAL), override)
    assert problem.key == key
    assert message in problem.message


def test_a_target_brings_its_own_section(monkeypatch: pytest.MonkeyPatch, recipe_file: Write) -> None:
    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        capability: tuple[int, ...] = Field(default=(8,), description="chips")

    class Other(TorchTarget):
        options = Options

    monkeypatch.setattr(targets, "names", lambda: ("torch", "other"))
    monkeypatch.setattr(targets, "get", lambda name: Other() if name == "other" else TorchTarget())
    recipe_module.recipe_class.cache_clear()
    try:
        path = recipe_file(MINIMAL + "other: {capability: [8, 9]}\n")
        chosen = load_recipe(path, ["target=other"]).recipe
        assert chosen.options(Options).capability == (8, 9)
        assert chosen.resolved()["other"] == {"capability": [8, 9]}
        # A recipe may carry several targets' sections; those not chosen decide nothing.
        assert "other" not in load_recipe(path).recipe.resolved()
        assert load_recipe(path).recipe.options(Options).capability == (8,)
        (problem,) = problems(path, "other.capability=[8, x]")
        assert (problem.key, problem.message) == ("other.capability[1]", 'given "x"; allowed: an integer')
    finally:
        recipe_module.recipe_class.cache_clear()


def test_published_schema_is_current_and_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    published = (ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "write it anew: python -m trtbuild schema > docs/recipe.schema.json"


def test_schema_describes_every_key_with_its_default_and_range() -> None:
    schema = json_schema()
    for name, definition in (("", schema), *schema["$defs"].items()):
        for key, node in definition.get("properties", {}).items():
            described = (
                node if "description" in node else schema["$defs"].get(str(node.get("$ref", "")).split("/")[-1], {})
            )
            assert described.get("description"), f"{name}.{key}"
            if node.get("type") == "integer" and "const" not in node:
                assert {"minimum", "maximum", "default"} <= node.keys(), f"{name}.{key}"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.sampled_from(["torch", "none", "x", "float16", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["mb", "ngram", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["recipe", "name", "model", "target", "limits", "speculative", "draft_model", "limits.max_seq_len",
     "limits.prefill_chunk", "speculative.prompt_lookup", "speculative.prompt_lookup.max_drafts", "speculative.drafter",
     "speculative.num_drafts", "speculative.prompt_lookup.shared_cache.mb", "model.dtype", "nonsense"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4))
def test_any_values_give_a_recipe_or_located_problems(
    changes: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(MINIMAL)
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes]
    try:
        recipe = load_recipe(path, overrides).recipe
    except RecipeError as e:
        assert e.problems
        assert all(p.message and (p.where.startswith((f"{path}:", "--set "))) for p in e.problems)
    else:
        jsonschema.validate(recipe.resolved(), json_schema())


def test_find_gives_the_nearest_parent(recipe_file: Write) -> None:
    root = read_file(recipe_file("a:\n  b:\n    - 1\n    - {c: 2}\n"))
    apply_overrides(root, ["a.d=4"])
    assert root.find(["a", "b", 1, "c"]).where.endswith(":4")
    assert root.find(["a", "b", 7]).where.endswith(":2")
    assert root.find(["a", "x", "y"]).where.endswith(":1")
    assert root.find(["a", "d"]) == Located(4, "--set a.d=4")
    assert root.plain() == {"a": {"b": [1, {"c": 2}], "d": 4}}
