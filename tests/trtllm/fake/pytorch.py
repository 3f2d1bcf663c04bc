"""The PyTorch execution path: ``LLM``, its workers, and the executor loop in the contract's order.

Each rank has its own copy of the speculative configuration, made by pickle as for a process of its own. All ranks run
in one thread here, and every round their drafts are compared. Rank 0 alone computes.
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from .contract import ContractError
from .decoding import Model, sampling_state
from .modules import Behaviour

#: Which rank the executor's thread is acting for.
acting = threading.local()


class RankDisagreementError(AssertionError):
    """Two ranks drafted differently."""


# ---- drafter.py, resource_manager.py, llm_request.py: what the contract's base classes do ----------------------------


def drafter_init(
    self: Any, max_draft_len: Any, max_total_draft_tokens: Any, max_concurrency: Any, draft_len_schedule: Any
) -> None:
    self.max_draft_len = max_draft_len
    self.max_total_draft_tokens = max_total_draft_tokens
    self._static_max_total_draft_tokens = max_total_draft_tokens
    self.max_concurrency = max_concurrency
    self.draft_len_schedule = draft_len_schedule


def should_use_spec_decode(
    self: Any, requests: Any, max_batch_size: int, max_num_tokens: int, max_total_draft_tokens: int
) -> bool:
    if self.max_concurrency is None:
        return True
    cap = max_num_tokens // (1 + max_total_draft_tokens)
    if not requests or max_batch_size <= 0 or cap <= 0:
        return False
    return min(len(requests), max_batch_size, cap) <= self.max_concurrency


def pad_draft_tokens(self: Any, scheduled_requests: Any, resource_manager: Any) -> None:
    pad_to = self._static_max_total_draft_tokens
    records = _facts()["padded_effective_length"]["value"]
    for request in scheduled_requests.generation_requests:
        if records:
            request.py_draft_tokens_effective_len = len(request.py_draft_tokens)
        if not isinstance(request.py_draft_tokens, list) or len(request.py_draft_tokens) > pad_to:
            raise ContractError("py_draft_tokens must be a list of at most max_total_draft_tokens tokens")
        request.py_draft_tokens.extend(0 for _ in range(pad_to - len(request.py_draft_tokens)))
    if self._needs_padding_kv_extension is not True:
        raise ContractError("a host drafter must set _needs_padding_kv_extension: TorchSampler rewinds by the padding")


def _facts() -> dict[str, Any]:
    import tensorrt_llm  # type: ignore[import-not-found]

    facts: dict[str, Any] = tensorrt_llm._contract["facts"]
    return facts


def manager_init(self: Any, resource_managers: Any) -> None:
    self.resource_managers = dict(resource_managers)


def each(name: str) -> Callable[..., None]:
    def call(self: Any, **values: Any) -> None:
        for manager in self.resource_managers.values():
            getattr(manager, name)(**{k: v for k, v in values.items() if k in ("scheduled_batch", "request")})

    return call


def scheduled_init(self: Any) -> None:
    self.context_requests, self.generation_requests, self.paused_requests = [], [], []


def request_init(self: Any, **v: Any) -> None:
    object.__setattr__(self, "_tokens", list(v["input_tokens"]))
    object.__setattr__(self, "_values", v)
    self.py_request_id = v["request_id"]
    self.py_client_id = v["client_id"]
    self.py_end_id = v["end_id"]
    self.py_prompt_len = self.py_orig_prompt_len = len(v["input_tokens"])
    self.py_max_new_tokens = v["max_new_tokens"]
    self.py_batch_idx = self.py_seq_slot = None
    self.py_draft_pages_allocated = self.py_rewind_len = self.py_num_accepted_draft_tokens = self.py_decoding_iter = 0
    self.py_draft_tokens, self.draft_tokens, self.py_last_draft_tokens = [], [], None
    words = v["stop_words_list"]
    self.py_stop_words_list = [[w for word in words for w in word], list(range(1, len(words) + 1))] if words else None
    self.py_disable_speculative_decoding = False
    self.py_conversation_params = None
    self.is_attention_dp_dummy = self.is_cuda_graph_dummy = False
    self.state = _state("CONTEXT_INIT")
    if _facts()["padded_effective_length"]["value"]:
        self.py_draft_tokens_effective_len = None


def _state(name: str) -> Any:
    import tensorrt_llm

    return tensorrt_llm._torch.pyexecutor.llm_request.LlmRequestState[name]


def finish_by_reason(self: Any, reason: Any) -> None:
    object.__setattr__(self, "_finish", reason)
    self.state = _state("GENERATION_COMPLETE")


def conversation_init(self: Any, conversation_id: Any) -> None:
    self.conversation_id = str(conversation_id).strip()
    if not self.conversation_id:
        raise ContractError("conversation_id must be non-empty")


def get_cache_salt_id(cache_salt: str) -> int:
    return int.from_bytes(hashlib.blake2b(cache_salt.encode(), digest_size=8).digest(), "little")


# ---- llm.py and result.py --------------------------------------------------------------------------------------------


class Output:
    """CompletionOutput of one sequence."""

    def __init__(self) -> None:
        self.index, self.text, self.token_ids = 0, "", []
        self.cumulative_logprob: float | None = None
        self.logprobs: list[Any] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._last = 0

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last :]


class Result:
    """RequestOutput: a generation's own queue of responses, read by iterating it."""

    def __init__(self, llm: FakeLLM, client: int, prompt: list[int]) -> None:
        self.request_id = client
        self.prompt_token_ids = prompt
        self.outputs = [Output()]
        self.finished = False
        self.cached_tokens = 0
        self._llm = llm
        self._aborted = False
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as e:
            raise ContractError("generate_async outside an event loop gives a result that cannot be iterated") from e
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def abort(self) -> None:
        self._llm.worker.cancel(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def put(self, response: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, response)

    def __aiter__(self) -> Result:
        return self

    async def __anext__(self) -> Result:
        if self.finished:
            raise StopAsyncIteration
        response = await self._queue.get()
        if "error" in response:
            self.finished = True
            raise RuntimeError(response["error"])
        output = self.outputs[0]
        output._last = len(output.token_ids)
        output.token_ids.extend(response["tokens"])
        output.logprobs.extend(response["logprobs"])
        self.finished = response["finish"] is not None
        output.finish_reason = response["finish"]
        self.cached_tokens = response["cached_tokens"]
        return self


class FakeLLM:
    """What ``LLM`` does; attached to the contract's class as ``_fake``."""

    def __init__(self, values: dict[str, Any]) -> None:
        arguments = {**values["kwargs"], **{k: v for k, v in values.items() if k != "kwargs"}}
        if arguments.get("pipeline_parallel_size", 1) > 1 and arguments.get("speculative_config") is not None:
            raise ContractError("drafting is not supported with pipeline parallelism")
        _check_dict("KvCacheConfig", arguments.get("kv_cache_config"))
        _check_dict("CudaGraphConfig", arguments.get("cuda_graph_config"))
        _check_dict("LoraConfig", arguments.get("lora_config"))
        arguments["speculative_config"] = _decoding(arguments.get("speculative_config"))
        self.arguments = arguments
        self.clients = 0
        self.results: dict[int, Result] = {}
        self.salted = 0
        self.worker = make_worker(arguments, self._respond)

    def generate_async(self, values: dict[str, Any]) -> Result:
        params = values["sampling_params"]
        if params.end_id is None:
            raise ContractError("without a tokenizer end_id must be given")
        if not values["streaming"]:
            raise ContractError("this fake streams")
        if (retention := values["kv_cache_retention_config"]) is not None:
            raise ContractError(f"not in use: {retention}")
        self.clients += 1
        result = Result(self, self.clients, list(values["inputs"]))
        self.results[self.clients] = result
        salt = values["cache_salt"]
        self.worker.submit(
            {
                "client_id": self.clients,
                "tokens": list(values["inputs"]),
                "params": params,
                "lora": values["lora_request"],
                "salt": None if salt is None else get_cache_salt_id(salt),
                "conversation": values["conversation_params"],
            }
        )
        return result

    def shutdown(self) -> None:
        self.worker.shutdown()

    def _respond(self, client: int, response: dict[str, Any]) -> None:
        self.results[client].put(response)
        if response.get("finish") is not None or "error" in response:
            del self.results[client]


def _module(name: str) -> Any:
    import sys

    return sys.modules[name]


def _check_dict(name: str, given: Any) -> None:
    if isinstance(given, dict):
        getattr(_module("tensorrt_llm.llmapi"), name)(**given)


def _decoding(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    api = _module("tensorrt_llm.llmapi")
    for name in ("NGramDecodingConfig", "SADecodingConfig", "MTPDecodingConfig", "Eagle3DecodingConfig"):
        if getattr(api, name)._fields["decoding_type"] == given["decoding_type"]:
            if (sa := given.get("sa_config")) is not None:
                api.SAEnhancerConfig(**sa)
            return getattr(api, name)(**given)
    raise ContractError(f"decoding_type {given['decoding_type']} is unknown, or needs a Python object")


# ---- py_executor.py --------------------------------------------------------------------------------------------------


class Rank:
    """One worker's drafter and resource managers, unpickled as its own."""

    def __init__(self, pickled: bytes) -> None:
        self.config = pickle.loads(pickled)
        kinds = _module("tensorrt_llm._torch.pyexecutor.resource_manager")
        managers = {}
        self.drafter = getattr(self.config, "drafter", None)
        manager = getattr(self.config, "resource_manager", None)
        if manager is not None:
            if not isinstance(manager, kinds.BaseResourceManager):
                raise ContractError("resource_manager is no BaseResourceManager")
            managers[kinds.ResourceManagerType.SPEC_RESOURCE_MANAGER] = manager
        if self.drafter is not None and not isinstance(
            self.drafter, _module("tensorrt_llm._torch.speculative.drafter").Drafter
        ):
            raise ContractError("drafter is no Drafter")
        self.managers = kinds.ResourceManager(managers)
        self.requests: dict[int, Any] = {}


class Worker:
    """The executor: one thread that runs the loop of the contract."""

    def __init__(self, arguments: dict[str, Any], respond: Callable[[int, dict[str, Any]], None]) -> None:
        config = arguments["speculative_config"]
        self._send = respond
        self.max_batch_size = arguments["max_batch_size"]
        self.max_num_tokens = arguments["max_num_tokens"]
        self.ranks = [Rank(pickle.dumps(_Shipped(config))) for _ in range(arguments["tensor_parallel_size"])]
        self.max_draft = 0 if config is None else config.max_total_draft_tokens
        drafter = self.ranks[0].drafter
        if drafter is not None and not arguments.get("disable_overlap_scheduler"):
            raise ContractError("a host drafter needs disable_overlap_scheduler")
        if drafter is not None and drafter.max_total_draft_tokens != self.max_draft:
            raise ContractError("the drafter's max_total_draft_tokens is not the configuration's")
        self.model = Model(
            arguments["model"], arguments["dtype"], self.max_batch_size, arguments["max_seq_len"], 1 + self.max_draft
        )
        self.order: list[str] = _module("tensorrt_llm")._contract["executor_loop"]["order"]
        self.trace: list[str] = []
        self.forwards: list[list[int]] = []
        self.drafted: list[dict[int, list[int]]] = []
        self.pause_at: set[int] = set()
        self.fail_at: set[int] = set()
        self.dummies = 0
        self.iteration = 0
        self.active: list[int] = []
        self.slots: list[int] = list(range(self.max_batch_size))
        self.info: dict[int, SimpleNamespace] = {}
        self.waiting: deque[dict[str, Any]] = deque()
        self.canceled: set[int] = set()
        self.unanswered: set[int] = set()
        self.use_spec_decode = False
        self.error: BaseException | None = None
        self._stop = False
        self._wake = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="fake-executor", daemon=True)
        self.thread.start()

    def submit(self, item: dict[str, Any]) -> None:
        with self._wake:
            self.unanswered.add(item["client_id"])
            self.waiting.append(item)
            self._wake.notify()
        if self.error is not None:
            self.respond(item["client_id"], {"error": f"Event loop terminated with error: {self.error}"})

    def respond(self, client: int, response: dict[str, Any]) -> None:
        if response.get("finish") is not None or "error" in response:
            self.unanswered.discard(client)
        self._send(client, response)

    def cancel(self, client: int) -> None:
        with self._wake:
            self.canceled.add(client)
            self._wake.notify()

    def shutdown(self) -> None:
        with self._wake:
            self._stop = True
            self._wake.notify()
        self.thread.join()
        for rank in self.ranks:
            for manager in rank.managers.resource_managers.values():
                manager.shutdown()
        self.model.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._stop or self.waiting or self.active)
                    if self._stop:
                        break
                self._iterate()
        except BaseException as e:
            self.error = e
            for client in sorted(self.unanswered):
                self.respond(client, {"error": f"Event loop terminated with error: {e}"})
        finally:
            self.active.clear()

    def _iterate(self) -> None:
        self.iteration += 1
        self.batch: list[int] = []
        self.finished: list[int] = []
        self.responses: dict[int, dict[str, Any]] = {}
        for step in self.order:
            if getattr(self, f"_{step}")() is not False:
                self.trace.append(step)

    # ---- the steps, by the contract's names --------------------------------------------------------------------------

    def _fetch_requests(self) -> None:
        with self._wake:
            items = list(self.waiting)
            self.waiting.clear()
        for item in items:
            number = 2000 + item["client_id"]
            params = item["params"]
            words = [[t] for t in params.stop_token_ids or ()]
            for rank in self.ranks:
                rank.requests[number] = _module("tensorrt_llm._torch.pyexecutor.llm_request").LlmRequest(
                    request_id=number,
                    max_new_tokens=params.max_tokens,
                    input_tokens=item["tokens"],
                    sampling_config=params,
                    is_streaming=True,
                    end_id=params.end_id,
                    stop_words_list=words or None,
                    lora_task_id=None if item["lora"] is None else item["lora"].lora_int_id,
                    client_id=item["client_id"],
                    cache_salt_id=item["salt"],
                )
                # Each rank has a copy of its own.
                rank.requests[number].py_conversation_params = pickle.loads(pickle.dumps(item["conversation"]))
            prompt = np.asarray(item["tokens"], np.int32)
            ends = () if params.end_id < 0 else (params.end_id,)
            self.info[number] = SimpleNamespace(
                client=item["client_id"],
                params=params,
                sampling=sampling_state(params._arguments, prompt, self.model.vocab_size, ends),
                slot=None,
                finish=None,
            )
            self.active.append(number)

    def _decide_speculation(self) -> Any:
        drafter = self.ranks[0].drafter
        if drafter is None:
            self.use_spec_decode = False
            return False
        uses = [
            rank.drafter.should_use_spec_decode(
                [rank.requests[n] for n in self.active], self.max_batch_size, self.max_num_tokens, self.max_draft
            )
            for rank in self.ranks
        ]
        self.use_spec_decode = uses[0]
        return None

    def _placeholder_drafts(self) -> Any:
        if self.ranks[0].drafter is None:
            return False
        for _, request in self._everywhere(self.active):
            if request.state != _state("GENERATION_IN_PROGRESS"):
                continue
            request.draft_tokens = [0] * self.max_draft
            request.py_last_draft_tokens = request.py_draft_tokens
            on = self.use_spec_decode and not request.py_disable_speculative_decoding
            request.py_draft_tokens = [0] * self.max_draft if on else []
            request.py_draft_pages_allocated = self.max_draft if on else 0
        return None

    def _schedule(self) -> None:
        budget = self.max_num_tokens
        for number in self.active:
            request, info = self.ranks[0].requests[number], self.info[number]
            if info.slot is None:
                if not self.slots or len(self.batch) >= self.max_batch_size:
                    continue
                info.slot = self.slots.pop(0)
            rows = 1 + len(request.draft_tokens) if request.state == _state("GENERATION_IN_PROGRESS") else 1
            if rows > budget:
                continue
            budget -= rows
            self.batch.append(number)
        self.scheduled = []
        for rank in self.ranks:
            scheduled = _module("tensorrt_llm._torch.pyexecutor.scheduler").ScheduledRequests()
            for number in self.batch:
                request = rank.requests[number]
                if self.iteration in self.pause_at and request.state == _state("GENERATION_IN_PROGRESS"):
                    scheduled.paused_requests.append(request)
                elif request.state == _state("CONTEXT_INIT"):
                    scheduled.context_requests.append(request)
                else:
                    scheduled.generation_requests.append(request)
            self.scheduled.append(scheduled)
        for request in self.scheduled[0].paused_requests:
            self.batch.remove(request.request_id)

    def _mark_disabled(self) -> Any:
        if self.ranks[0].drafter is None or self.use_spec_decode:
            return False
        for scheduled in self.scheduled:
            for request in scheduled.all_requests():
                request.py_disable_speculative_decoding = True
        return None

    def _terminate_paused(self) -> Any:
        paused = [request.request_id for request in self.scheduled[0].paused_requests]
        if not paused:
            return False
        for rank, request in self._everywhere(paused):
            rank.managers.free_resources(request)
        for _, request in self._everywhere(paused):
            request.state = _state("CONTEXT_INIT")
            request.py_prompt_len = request.get_num_tokens(0)
        for number in paused:
            info = self.info[number]
            self.slots.append(info.slot)
            info.slot = None
        return None

    def _prepare_resources(self) -> Any:
        if not self.batch:
            return False
        if self.dummies:
            # A batch is filled up to a size that has a CUDA graph.
            for scheduled in self.scheduled:
                for i in range(self.dummies):
                    dummy = _module("tensorrt_llm._torch.pyexecutor.llm_request").LlmRequest(
                        2**40 + i, 1, [0, 0], None, False, end_id=0, client_id=None
                    )
                    dummy.is_cuda_graph_dummy = True
                    scheduled.generation_requests.append(dummy)
        for rank, scheduled in zip(self.ranks, self.scheduled, strict=True):
            rank.managers.prepare_resources(scheduled)
        return None

    def _prepare_draft_tokens(self) -> Any:
        if not (self.batch and self.use_spec_decode):
            return False
        for number, (rank, scheduled) in enumerate(zip(self.ranks, self.scheduled, strict=True)):
            acting.rank = number
            rank.drafter.prepare_draft_tokens(scheduled, rank.managers)
        drafts = [{r.request_id: list(r.py_draft_tokens) for r in s.generation_requests} for s in self.scheduled]
        if any(d != drafts[0] for d in drafts):
            raise RankDisagreementError(f"ranks drafted {drafts}")
        self.drafted.append(drafts[0])
        return None

    def _pad_draft_tokens(self) -> Any:
        if not (self.batch and self.use_spec_decode):
            return False
        for rank, scheduled in zip(self.ranks, self.scheduled, strict=True):
            rank.drafter.pad_draft_tokens_for_cuda_graph(scheduled, rank.managers)
            for dummy in [r for r in scheduled.generation_requests if r.is_dummy]:
                scheduled.generation_requests.remove(dummy)
        return None

    def _forward(self) -> Any:
        self.failed: BaseException | None = None
        if self.iteration in self.fail_at:
            self.failed = RuntimeError("the forward failed")
            return None
        rows = []
        for number in self.batch:
            request, info = self.ranks[0].requests[number], self.info[number]
            tokens = request.get_tokens(0)
            if request.state == _state("CONTEXT_INIT"):
                if len(tokens) > 1:
                    self.model.prefill(info.slot, 0, tokens[:-1])
                rows.append((info.slot, len(tokens) - 1, [tokens[-1]], info.sampling))
            else:
                drafts = self._chain(tokens) if self.ranks[0].drafter is None else request.py_draft_tokens
                rows.append((info.slot, len(tokens) - 1, [tokens[-1], *drafts], info.sampling))
        self.rows = [r[2] for r in rows]
        if rows:
            self.forwards.append([len(r[2]) for r in rows])
            self.outcome = self.model.forward(rows)
        return None

    def _chain(self, tokens: list[int]) -> list[int]:
        """A built-in drafter's chain. What it proposes does not matter: this one repeats what followed last."""
        for at in range(len(tokens) - 2, 0, -1):
            if tokens[at] == tokens[-1]:
                found = tokens[at + 1 : at + 1 + self.max_draft]
                return found + [0] * (self.max_draft - len(found))
        return [0] * self.max_draft

    def _sample(self) -> None:
        pass

    def _update_requests(self) -> None:
        if self.failed is not None:
            # _handle_errors: every active request ends and its resources are freed.
            failed = list(self.active)
            self.active.clear()
            for _, request in self._everywhere(failed):
                request.state = _state("GENERATION_COMPLETE")
            for number in failed:
                self.respond(self.info[number].client, {"error": str(self.failed)})
            self._free(failed)
            self.batch = []
            return
        start = 0
        for b, number in enumerate(self.batch):
            info = self.info[number]
            request = self.ranks[0].requests[number]
            padded = len(self.rows[b]) - 1
            count = int(self.outcome.accepted[b]) + 1
            targets = self.outcome.targets[start : start + count].tolist()
            entries = self.outcome.logprobs[b]
            start += 1 + padded
            new, logprobs = [], []
            for i, token in enumerate(targets):
                new.append(token)
                if entries is not None:
                    ranked = {
                        int(t): float(v) for t, v in zip(entries[i].top_tokens, entries[i].top_values, strict=True)
                    }
                    ranked[token] = float(entries[i].chosen)
                    logprobs.append({t: SimpleNamespace(logprob=v, rank=None) for t, v in ranked.items()})
                info.finish = self._finish_reason(request, new, token)
                if info.finish is not None:
                    break
            info.sampling.commit(np.asarray(new, np.int32))
            for _, each_rank in self._everywhere([number]):
                each_rank._tokens.extend(new)
                each_rank.py_decoding_iter += 1
                each_rank.py_num_accepted_draft_tokens = len(new) - 1
                each_rank.py_rewind_len = padded - (len(new) - 1)
                each_rank.state = _state("GENERATION_COMPLETE" if info.finish else "GENERATION_IN_PROGRESS")
            self.responses[number] = {"tokens": new, "logprobs": logprobs}

    def _finish_reason(self, request: Any, new: list[int], token: int) -> str | None:
        output = request.get_num_tokens(0) + len(new) - request.py_orig_prompt_len
        params = self.info[request.request_id].params
        if token == request.py_end_id and output > (params.min_tokens or 0):
            return "stop"
        if params.stop_token_ids and token in params.stop_token_ids:
            return "stop"
        return "length" if output >= request.py_max_new_tokens else None

    def _handle_canceled(self) -> Any:
        with self._wake:
            canceled, self.canceled = self.canceled, set()
        hit = [n for n in self.active if self.info[n].client in canceled]
        if not hit:
            return False
        for _, request in self._everywhere(hit):
            request.finish_by_reason("CANCELLED")
        for number in hit:
            if self.info[number].finish is None:
                self.info[number].finish = "cancelled"
            self.responses.setdefault(number, {"tokens": [], "logprobs": []})
        return None

    def _respond(self) -> None:
        for number, response in self.responses.items():
            info = self.info[number]
            self.respond(info.client, {**response, "finish": info.finish, "cached_tokens": 0})
            if info.finish is not None:
                self.finished.append(number)
                self.active.remove(number)

    def _free_resources(self) -> Any:
        if not self.finished:
            return False
        self._free(self.finished)
        return None

    def _update_resources(self) -> Any:
        if not self.batch:
            return False
        for rank, scheduled in zip(self.ranks, self.scheduled, strict=True):
            rank.managers.update_resources(scheduled)
        return None

    def _free(self, numbers: list[int]) -> None:
        for rank in self.ranks:
            for number in numbers:
                rank.managers.free_resources(rank.requests.pop(number))
        for number in numbers:
            info = self.info.pop(number)
            if info.slot is not None:
                self.slots.append(info.slot)

    def _everywhere(self, numbers: list[int]) -> list[tuple[Rank, Any]]:
        return [(rank, rank.requests[n]) for rank in self.ranks for n in numbers]


class _Shipped:
    """A configuration on its way to a worker: its fields by pickle, since a fake's classes have no importable home."""

    def __init__(self, config: Any) -> None:
        self.__dict__.update({} if config is None else vars(config))


#: How ``LLM`` makes its worker; a test puts a process here.
make_worker: Callable[..., Any] = Worker

BEHAVIOUR: Behaviour = {
    ("", "mpi_rank"): lambda: getattr(acting, "rank", 0),
    ("", "get_cache_salt_id"): get_cache_salt_id,
    ("Drafter", "__init__"): drafter_init,
    ("Drafter", "should_use_spec_decode"): should_use_spec_decode,
    ("Drafter", "pad_draft_tokens_for_cuda_graph"): pad_draft_tokens,
    ("ResourceManager", "__init__"): manager_init,
    ("ResourceManager", "get_resource_manager"): lambda self, type: self.resource_managers.get(type),
    ("ResourceManager", "prepare_resources"): each("prepare_resources"),
    ("ResourceManager", "update_resources"): each("update_resources"),
    ("ResourceManager", "free_resources"): each("free_resources"),
    ("ScheduledRequests", "__init__"): scheduled_init,
    ("ScheduledRequests", "all_requests"): lambda self: [*self.context_requests, *self.generation_requests],
    ("LlmRequest", "__init__"): request_init,
    ("LlmRequest", "get_tokens"): lambda self, beam: list(self._tokens),
    ("LlmRequest", "get_num_tokens"): lambda self, beam: len(self._tokens),
    ("LlmRequest", "finish_by_reason"): finish_by_reason,
    ("LlmRequest", "request_id"): lambda self: self._values["request_id"],
    ("LlmRequest", "cache_salt_id"): lambda self: self._values["cache_salt_id"],
    ("LlmRequest", "lora_task_id"): lambda self: self._values["lora_task_id"],
    ("LlmRequest", "is_dummy_request"): lambda self: False,
    ("LlmRequest", "is_dummy"): lambda self: self.is_attention_dp_dummy or self.is_cuda_graph_dummy,
    ("LlmRequest", "is_finished"): lambda self: self.state == _state("GENERATION_COMPLETE"),
    ("ConversationParams", "__init__"): conversation_init,
    ("LLM", "__init__"): lambda self, **values: object.__setattr__(self, "_fake", FakeLLM(values)),
    ("LLM", "generate_async"): lambda self, **values: self._fake.generate_async(values),
    ("LLM", "shutdown"): lambda self: self._fake.shutdown(),
}
