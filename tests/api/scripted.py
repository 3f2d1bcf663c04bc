"""A scripted engine and a byte tokenizer: every behaviour of the API can be provoked by what a prompt says.

The answer to a prompt is ``[seed S]`` where a seed is given, then the prompt's last line, said ``repeat`` times, in
rounds of three tokens. In each round the first two tokens pass for a copy. A prompt can contain commands:

``FAIL`` fails at once, ``FAIL LATER`` after two rounds, ``SLOW`` waits between rounds until it is cancelled or let go,
``RAISE`` makes ``submit`` raise what the test put into ``submit_error``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.generation import LocalGeneration, deliver
from trtserve.engine.protocol import (
    SOURCES,
    Delta,
    EngineClosedError,
    EngineMetrics,
    Finish,
    FinishReason,
    GenerationRequest,
    GenerationStats,
    QueueFullError,
    SourceStats,
    TokenOut,
)
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, plan_tiers
from trtserve.tokenizer import ChatTemplateError, TooManyTokensError

VOCAB = 256
MAX_SEQ_LEN = 512


def manifest() -> Manifest:
    model = DecoderConfig(
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=MAX_SEQ_LEN,
        rms_norm_eps=1e-5,
    )
    limits = Limits(max_batch_size=4, max_seq_len=MAX_SEQ_LEN, prefill_chunk=64)
    return Manifest(
        name="scripted",
        target="torch",
        model=model,
        tokenizer=TokenizerRecord(vocab_size=VOCAB, eos_token_ids=(0,), chat_template=True),
        limits=limits,
        speculative=Speculative(),
        tiers=plan_tiers(limits, Speculative()),
        inputs_digest="0" * 64,
        weights_digest="1" * 64,
        tokenizer_digest="2" * 64,
        built_with={"trtlookup": "0", "python": "3"},
    )


class ByteCodec:
    """One token per UTF-8 byte."""

    longest = 0
    """Bytes of the longest text that was encoded."""

    def encode(
        self, text: str, *, add_bos: bool = False, allow_special: bool = True, most: int | None = None
    ) -> NDArray[np.int32]:
        # Of a token count the text alone proves half, so that texts between are counted.
        if most is not None and (fewest := len(text.encode()) // 2) > most:
            raise TooManyTokensError(fewest, most)
        self.longest = max(self.longest, len(text))
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode_head(self, text: str, most: int) -> NDArray[np.int32]:
        return self.encode(text[:most])[:most]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        lines = [f"tools: {len(tools)}"] if tools else []
        lines += [f"{key}={value}" for key, value in sorted(variables.items())]
        for message in messages:
            if message["role"] == "refused":
                raise ChatTemplateError("the template takes no role 'refused'")
            calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
            lines.append(f"{message['role']}:{message['content']}{calls or ''}")
        return "\n".join(lines)


class ScriptedEngine:
    """``engine.protocol.Engine``, by the rules above. Four slots; ``max_queue`` more may wait."""

    def __init__(self, max_queue: int = 8) -> None:
        self.manifest = manifest()
        self.healthy = True
        self.submit_error: Exception | None = None
        self.requests: list[GenerationRequest] = []
        self.go = threading.Event()
        """Lets SLOW requests go on."""
        self.stuck = threading.Semaphore(0)
        """Released once per SLOW request that has begun to wait."""
        self._max = 4 + max_queue
        self._lock = threading.Condition()
        self._running: set[LocalGeneration] = set()
        self._cancelled: set[LocalGeneration] = set()
        self._closed = False
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "cancelled": 0, "error": 0}

    @property
    def num_running(self) -> int:
        return len(self._running)

    def wait_idle(self, timeout: float = 10) -> bool:
        """Until no request holds a slot."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._running, timeout)

    def submit(self, request: GenerationRequest) -> LocalGeneration:
        text = bytes(request.prompt).decode("utf-8", "replace")
        if "RAISE" in text and self.submit_error is not None:
            raise self.submit_error
        with self._lock:
            if self._closed:
                raise EngineClosedError("closed")
            if len(self._running) >= self._max:
                raise QueueFullError("8 requests are waiting already; the queue is full", 3)
            generation: LocalGeneration = LocalGeneration(request, lambda: self._cancel(generation))
            self._running.add(generation)
            self.requests.append(request)
        threading.Thread(target=self._run, args=(generation, text), daemon=True).start()
        return generation

    def _cancel(self, generation: LocalGeneration) -> None:
        with self._lock:
            self._cancelled.add(generation)
            self._lock.notify_all()

    def _rounds(self, request: GenerationRequest, text: str) -> Iterator[Delta]:
        params = request.params
        seed = f"[seed {params.seed}]" if params.seed is not None else ""
        out = (seed + text.rsplit("\n", 1)[-1]).encode()
        stops = [at for stop in params.stop if (at := out.find(stop.encode())) >= 0]
        out = out[: min(stops)] if stops else out
        out = out if params.max_tokens is None else out[: params.max_tokens]
        pending = b""
        for at in range(0, len(out), 3):
            part = out[at : at + 3]
            tokens = tuple(
                TokenOut(
                    token,
                    "history" if i < 2 and request.lookup else None,
                    None if params.logprobs is None else -0.5,
                    () if params.logprobs is None else tuple((t, -0.5 - t) for t in (token, 65))[: params.logprobs],
                )
                for i, token in enumerate(part)
            )
            pending += part
            whole = pending
            while whole:
                try:
                    shown = whole.decode()
                    break
                except UnicodeDecodeError:
                    whole = whole[:-1]
            else:
                shown = ""
            pending = pending[len(whole) :]
            half = len(shown) // 2
            spans = (
                tuple(s for s in ((shown[:half], "history"), (shown[half:], None)) if s[0]) if request.lookup else ()
            )
            yield Delta(shown, tokens, spans)  # type: ignore[arg-type]

    def _run(self, generation: LocalGeneration, text: str) -> None:
        request = generation.request
        sent = rounds = 0
        reason: FinishReason = "stop"
        error = None
        if "FAIL" in text and "FAIL LATER" not in text:
            reason, error = "error", "no finite logit"
        else:
            for delta in self._rounds(request, text):
                if "SLOW" in text and rounds == 2:
                    self.stuck.release()
                    with self._lock:
                        self._lock.wait_for(lambda: generation in self._cancelled or self.go.is_set(), 20)
                if generation in self._cancelled:
                    reason = "cancelled"
                    break
                if "FAIL LATER" in text and rounds == 2:
                    reason, error = "error", "no finite logit"
                    break
                deliver([(generation, delta)])
                rounds += 1
                sent += len(delta.tokens)
        if reason == "stop" and request.params.max_tokens == sent:
            reason = "length"
        sources = {"history": SourceStats(2 * rounds, sent - rounds)} if request.lookup else {}
        if request.prediction:
            sources["prediction"] = SourceStats(5, 3)
        stats = GenerationStats(
            prompt_tokens=len(request.prompt),
            cached_tokens=1,
            completion_tokens=sent,
            rounds=rounds,
            sources=sources,  # type: ignore[arg-type]
            rounds_skipped=1,
            decode_time=0.001 * rounds,
            window=4,
        )
        stop = request.params.stop[0] if reason == "stop" and request.params.stop else None
        with self._lock:
            self._running.discard(generation)
            self.finished[reason] += 1
            self._lock.notify_all()
        deliver([(generation, Finish(reason, stats, stop=stop, error=error))])

    def release(self) -> None:
        """Let SLOW requests go on."""
        self.go.set()
        with self._lock:
            self._lock.notify_all()

    def metrics(self) -> EngineMetrics:
        per_source = dict.fromkeys(SOURCES, 0)
        return EngineMetrics(
            requests_running=self.num_running,
            requests_waiting=0,
            kv_tokens_used=10,
            kv_tokens_capacity=40,
            prompt_tokens_total=100,
            cached_tokens_total=25,
            generation_tokens_total=60,
            rounds_total=20,
            round_sequences_total=30,
            rounds_skipped_total=2,
            draft_tokens_total={**per_source, "history": 40},
            accepted_tokens_total={**per_source, "history": 30},
            copies_total={**per_source, "history": 9},
            mean_window=3.5,
            sequences_backing_off=1,
            shared_cache_bytes=1024,
            shared_cache_budget_bytes=4096,
            shared_cache_scopes=2,
            shared_cache_evictions_total=1,
            shared_cache_saves_total=3,
            shared_cache_save_failures_total=1,
            shared_cache_save_seconds=0.25,
            shared_cache_save_bytes=700,
            scheduler_seconds_total=0.1,
            forward_seconds_total=0.9,
            prefill_seconds_total=0.5,
            finished_total=dict(self.finished),
        )

    def drain(self, timeout: float | None = None) -> bool:
        with self._lock:
            self._closed = True
            if self._lock.wait_for(lambda: not self._running, timeout):
                return True
            self._cancelled |= self._running
            self._lock.notify_all()
            return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._cancelled |= self._running
            self._lock.notify_all()
