"""Our drafter and resource manager as TensorRT-LLM's classes: ``UserProvidedDecodingConfig`` takes one of each.

Imported only where ``tensorrt_llm`` is. Both travel to the workers by pickle, as their plan: what they hold there, they
make there, on the executor's own thread, with the first request that is no dummy.

The drafter finds the manager through the executor's registry of resource managers, never through a reference of its
own, so it does not matter whether the two were pickled together.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from trtserve.engine.tensorrt_llm.batch_drafts import BatchDrafts, LookupPlan
from trtserve.engine.tensorrt_llm.feed import FeedWriter

_log = logging.getLogger(__name__)

_drafter: Any = importlib.import_module("tensorrt_llm._torch.speculative.drafter")
_resources: Any = importlib.import_module("tensorrt_llm._torch.pyexecutor.resource_manager")
_processes: Any = importlib.import_module("tensorrt_llm._utils")


class LookupResources(_resources.BaseResourceManager):  # type: ignore[misc]
    """Follows requests from their first draft to their end, and holds the shared cache."""

    def __init__(self, plan: LookupPlan, tensor_parallel_size: int) -> None:
        super().__init__()
        self.plan = plan
        self.tensor_parallel_size = tensor_parallel_size
        self._drafts: BatchDrafts | None = None
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "tensor_parallel_size": self.tensor_parallel_size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def draft(self, requests: list[Any]) -> dict[int, list[int]]:
        """Drafts by request id for the next forward of ``requests``; empty once this has failed."""
        if self._failed or not requests:
            return {}
        try:
            return self._made().draft(requests)
        except Exception:
            self._fail("draft")
            return {}

    def free_resources(self, request: Any) -> None:
        if self._drafts is None or self._failed or request.is_dummy:
            return
        try:
            self._drafts.finish(request)
        except Exception:
            self._fail("finish")

    def get_max_resource_count(self) -> int:
        return self.plan.max_batch_size

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return 0

    def shutdown(self) -> None:
        if self._drafts is not None:
            self._drafts.close()

    def _made(self) -> BatchDrafts:
        if self._drafts is None:
            rank = _processes.mpi_rank()
            feed = FeedWriter(self.plan.feed_address) if rank == 0 and self.plan.feed_address else None
            self._drafts = BatchDrafts(self.plan, feed)
        return self._drafts

    def _fail(self, doing: str) -> None:
        """Go on without copies, unless other ranks would go on with them."""
        _log.exception("the drafter failed in %s; this worker takes no more copies", doing)
        self._failed = True
        if self.tensor_parallel_size > 1:
            # Ranks that put different drafts through one forward would compute nonsense, in silence.
            raise


class LookupDrafter(_drafter.Drafter):  # type: ignore[misc]
    """Puts copies in place of the executor's empty drafts before each forward."""

    # TorchSampler rewinds by the padded length, so the padding needs room in the KV cache.
    _needs_padding_kv_extension = True

    def __init__(self, max_draft_len: int, max_concurrency: int) -> None:
        super().__init__(
            max_draft_len=max_draft_len, max_total_draft_tokens=max_draft_len, max_concurrency=max_concurrency
        )

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Set ``py_draft_tokens`` of every request in generation; the executor pads them."""
        kind = _resources.ResourceManagerType.SPEC_RESOURCE_MANAGER
        manager = None if resource_manager is None else resource_manager.get_resource_manager(kind)
        requests = list(scheduled_requests.generation_requests)
        real = [request for request in requests if not request.is_dummy]
        drafts = manager.draft(real) if isinstance(manager, LookupResources) else {}
        for request in requests:
            request.py_draft_tokens = [] if request.is_dummy else drafts.get(request.py_request_id, [])
