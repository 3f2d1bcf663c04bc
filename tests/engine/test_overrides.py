"""Serve-time overrides: what changes, and what is refused with both numbers."""

from __future__ import annotations

import pytest

from trtserve.engine_dir import Manifest
from trtserve.overrides import OverrideError, Overrides
from trtserve.settings import Limits, PromptLookup, SharedCache, Speculative

from .toy import toy_manifest

LOOKUP = PromptLookup(max_drafts=8, batch_max_drafts=3, max_seqs=8)


@pytest.fixture
def manifest() -> Manifest:
    return toy_manifest(Limits(max_batch_size=16), Speculative(prompt_lookup=LOOKUP))


def test_nothing_given_nothing_changed(manifest: Manifest) -> None:
    assert Overrides.parse({}).speculative(manifest) == manifest.speculative


def test_single_fields(manifest: Manifest) -> None:
    speculative = Overrides.parse(
        {
            "prompt_lookup_max_drafts": 5,
            "prompt_lookup_ngram": 3,
            "prompt_lookup_shared_cache_mb": 16,
            "exact_verify": True,
        }
    ).speculative(manifest)
    assert speculative.exact_verify
    changed = {"max_drafts": 5, "ngram": 3, "shared_cache": SharedCache(mb=16)}
    assert speculative.prompt_lookup == LOOKUP.model_copy(update=changed)


def test_lookup_off(manifest: Manifest) -> None:
    assert Overrides.parse({"prompt_lookup_decoding": False}).speculative(manifest).prompt_lookup is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_lookup_max_drafts": 12}, "max_drafts is 12, .* rows for 8 drafts"),
        ({"prompt_lookup_batch_max_drafts": 4}, "batch_max_drafts is 4, .* rows for 3 drafts"),
        ({"prompt_lookup_max_seqs": 12}, "max_seqs is 12, .* copies for 8 sequences"),
        ({"prompt_lookup_max_drafts": 65}, "prompt_lookup_max_drafts: .* less than or equal to 64, not 65"),
        ({"prompt_lookup_shared_cache_scopes": 0}, "prompt_lookup_shared_cache_scopes: .*greater than or equal to 1"),
        (
            {"prompt_lookup_decoding": False, "prompt_lookup_shared_cache_mb": 8},
            "lookup is off, but prompt_lookup_shared_cache_mb needs it",
        ),
        ({"hermetic": True, "prompt_lookup_shared_cache_mb": 8}, "hermetic refuses the shared cache"),
        ({"kernel_cache": "somewhere"}, "kernel_cache does not apply to target torch: .*allowed: off"),
        ({"cost_curve": "gpu-modelled", "prompt_lookup_decoding": False}, "cost_curve does nothing without"),
        ({"cost_curve": "gpu-modelled", "prompt_lookup_policy": "window"}, "cost_curve does nothing without"),
        ({"prompt_lookup_shared_cache_scopes": 2}, "shared_cache_scopes does nothing without a shared cache"),
        ({"prompt_lookup_max_draft": 4}, "prompt_lookup_max_draft is not an override; allowed: device, threads"),
        ({"threads": 0}, "threads: .*greater than or equal to 1, not 0"),
        ({"threads": "2", "max_queue": -1}, "threads: .*; max_queue: "),
    ],
)
def test_refusals(manifest: Manifest, given: dict[str, object], message: str) -> None:
    with pytest.raises(OverrideError, match=message):
        Overrides.parse(given).speculative(manifest)


def test_what_says_nothing_new_is_no_fault(manifest: Manifest) -> None:
    assert Overrides.parse({"kernel_cache": "off"}).speculative(manifest) == manifest.speculative
    on_gpus = manifest.model_copy(update={"target": "tensorrt"})
    assert Overrides.parse({"kernel_cache": "somewhere"}).speculative(on_gpus) == manifest.speculative


def test_settings_of_another_policy_are_named(manifest: Manifest) -> None:
    given = {"prompt_lookup_min_match": 9, "prompt_lookup_miss_backoff": 0, "prompt_lookup_ngram": 3}
    adaptive, window = (Overrides.parse({**given, "prompt_lookup_policy": policy}) for policy in ("adaptive", "window"))
    unused = ["prompt_lookup_min_match", "prompt_lookup_miss_backoff"]
    assert adaptive.without_effect(adaptive.speculative(manifest)) == unused
    assert window.without_effect(window.speculative(manifest)) == []
    off = Overrides.parse({"prompt_lookup_decoding": False})
    assert off.without_effect(off.speculative(manifest)) == []


def test_max_seqs_beyond_the_slots_is_all_of_them() -> None:
    manifest = toy_manifest(Limits(max_batch_size=4), Speculative())
    lookup = Overrides.parse({"prompt_lookup_max_seqs": 100}).speculative(manifest).prompt_lookup
    assert lookup is not None and lookup.max_seqs == 100


def test_lookup_on_an_engine_built_without_rows_for_it() -> None:
    manifest = toy_manifest(Limits(max_batch_size=4), Speculative(prompt_lookup=None))
    with pytest.raises(OverrideError, match=r"max_drafts is \d+, .* rows for 0 drafts"):
        Overrides.parse({"prompt_lookup_decoding": True}).speculative(manifest)


def test_hermetic_turns_a_built_in_shared_cache_off() -> None:
    built = Speculative(prompt_lookup=PromptLookup(shared_cache=SharedCache(mb=64)))
    lookup = Overrides.parse({"hermetic": True}).speculative(toy_manifest(Limits(), built)).prompt_lookup
    assert lookup is not None and lookup.shared_cache.mb == 0
