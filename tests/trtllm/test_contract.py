"""The fake has what the contracts have and refuses everything else: a wrong name fails here, not on somebody's GPU."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any

import pytest

from . import fake
from .fake import ContractError
from .fake.modules import signature


@pytest.mark.parametrize("line", fake.LINES)
def test_every_fact_names_its_source(line: str) -> None:
    contract = fake.load(line)
    sources = contract["sources"]
    for source in sources.values():
        assert source["path"].startswith(("tensorrt_llm/", "cpp/", "tests/"))
        assert {"commit", "text", "seen", "version"} & set(source)
    for module in contract["modules"].values():
        for kind in ("classes", "configs", "functions"):
            for described in module.get(kind, {}).values():
                assert described["source"] in sources
    for fact in contract["facts"].values():
        assert fact["source"] in sources


@pytest.mark.parametrize("line", fake.LINES)
def test_the_fake_is_generated_from_the_contract(line: str) -> None:
    contract = fake.load(line)
    with fake.installed(line) as package:
        assert package.__version__ == contract["version"]
        for name, content in contract["modules"].items():
            for class_name, described in content.get("classes", {}).items():
                cls = getattr(sys.modules[name], class_name)
                assert inspect.signature(cls.__init__) == signature(described["init"])
                for method, text in described.get("methods", {}).items():
                    assert inspect.signature(getattr(cls, method)) == signature(text)
    assert "tensorrt_llm" not in sys.modules


def test_wrong_arguments_fields_and_attributes_are_refused() -> None:
    with fake.installed("1.3") as package:
        api: Any = package.llmapi
        refused = [
            lambda: package.SamplingParams(max_new_tokens=4),
            lambda: api.UserProvidedDecodingConfig(max_draft_len=4),
            lambda: api.UserProvidedDecodingConfig(max_draft_tokens=4, drafter=object()),
            lambda: api.NGramDecodingConfig(max_draft_len=0),
            lambda: api.Eagle3DecodingConfig(max_draft_len=3),
            lambda: api.KvCacheConfig(block_reuse=True),
            lambda: package.LLM(model="m", max_batch=4),
            lambda: package.LLM(),
            lambda: package.SamplingParams().max_new_tokens,
            lambda: setattr(package.SamplingParams(), "max_new_tokens", 4),
            lambda: setattr(api.KvCacheConfig(), "dtype", "fp8"),
        ]
        for attempt in refused:
            with pytest.raises(ContractError):
                attempt()


def test_requests_are_read_only_where_the_bindings_are() -> None:
    with fake.installed("1.3") as package:
        request = package._torch.pyexecutor.llm_request.LlmRequest(7, 4, [1, 2], None, True, cache_salt_id=9)
        assert (request.request_id, request.cache_salt_id, request.get_tokens(0)) == (7, 9, [1, 2])
        for name in ("cache_salt_id", "py_salt", "is_dummy"):
            with pytest.raises(ContractError):
                setattr(request, name, 1)
        with pytest.raises(ContractError):
            _ = request.py_salt
        with pytest.raises(ContractError):
            request.get_tokens()
        # What 1.4 records before it pads, 1.3 does not have.
        with pytest.raises(ContractError):
            request.py_draft_tokens_effective_len = 1
    with fake.installed("1.4") as package:
        request = package._torch.pyexecutor.llm_request.LlmRequest(7, 4, [1, 2], None, True)
        assert request.py_draft_tokens_effective_len is None


def test_abstract_and_final_methods() -> None:
    with fake.installed("1.3") as package:
        base = package._torch.speculative.drafter.Drafter
        with pytest.raises(TypeError, match="abstract"):
            base(4)
        with pytest.raises(ContractError, match="final"):
            type("Own", (base,), {"should_use_spec_decode": lambda self: True})
        with pytest.raises(TypeError, match="abstract"):
            type("Half", (package._torch.pyexecutor.resource_manager.BaseResourceManager,), {})()


def test_host_drafters_of_the_wrong_kind_are_refused(checkpoint: Any) -> None:
    """What the executor would only meet at run time: no overlap, the padded rewind, linear drafts, no pipeline."""
    with fake.installed("1.3") as package:
        base = package._torch.speculative.drafter.Drafter

        def llm(drafter: Any, **arguments: Any) -> None:
            config = package.llmapi.UserProvidedDecodingConfig(max_draft_len=4, drafter=drafter)
            common = {"max_batch_size": 2, "max_num_tokens": 64, "max_seq_len": 64, "disable_overlap_scheduler": True}
            package.LLM(model=str(checkpoint), dtype="float32", speculative_config=config, **{**common, **arguments})

        drafter = _Silent.make(base)(max_draft_len=4, max_total_draft_tokens=4)
        with pytest.raises(ContractError, match="disable_overlap_scheduler"):
            llm(drafter, disable_overlap_scheduler=False)
        with pytest.raises(ContractError, match="max_total_draft_tokens"):
            llm(_Silent.make(base)(max_draft_len=3, max_total_draft_tokens=3))
        with pytest.raises(ContractError, match="pipeline"):
            llm(drafter, pipeline_parallel_size=2)
        with pytest.raises(ContractError, match="no Drafter"):
            llm(3)


def test_generate_async_needs_an_event_loop(open_engine: Any) -> None:
    engine = open_engine("1.3")
    llm, package = engine.engine._llm, sys.modules["tensorrt_llm"]
    params = package.SamplingParams(end_id=1)  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="event loop"):
        llm.generate_async([2, 3], sampling_params=params, streaming=True)

    async def call(**arguments: Any) -> None:
        llm.generate_async([2, 3], streaming=True, **arguments)

    for wrong in ({"sampling_params": params, "salt": "x"}, {"sampling_params": package.SamplingParams()}):  # type: ignore[attr-defined]
        with pytest.raises(ContractError):
            asyncio.run(call(**wrong))


class _Silent:
    """A drafter without drafts, at module level so that it can be pickled."""

    @staticmethod
    def make(base: type) -> type:
        global Silent
        Silent = type(
            "Silent", (base,), {"prepare_draft_tokens": lambda self, scheduled_requests, resource_manager=None: None}
        )
        Silent.__module__ = __name__
        return Silent
