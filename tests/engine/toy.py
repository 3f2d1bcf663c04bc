"""A language model of fifty-odd tokens that is computed from a KV cache in NumPy, a tokenizer for it, and drafters
that force the engine's corner cases.

The model is made to punish mistakes. A position's key depends on everything before it, rejected rows really leave
their garbage in the cache, a freed slot keeps its content, and logits are computed from what the slot holds below the
row's position: a wrong length, a wrong prefix or a row of another sequence changes the text.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, Delta, Finish
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.executor.base import Executor, ExecutorInfo, StepInput, StepOutput, TokenLogprobs
from trtserve.model_config import DecoderConfig
from trtserve.sampling import PROMPT_BIT, SamplingParams, SamplingState
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

PIECES: tuple[bytes, ...] = (
    *(bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"),
    *(b" ", b"\n", b".", b",", b"ST", b"OP", b"END", b"foo(", b")", b"{", b"}", b'"', b"the ", b"of "),
    *(b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"\xe2\x82", b"\xac"),  # é, an emoji and the euro sign, in parts
    b"",  # EOS
    b"",  # EOT, a second end token
)
VOCAB = len(PIECES)
EOS, EOT = VOCAB - 2, VOCAB - 1


def ids(text: str) -> list[int]:
    """Tokens of a text, longest piece first."""
    data, out = text.encode(), []
    ranked = sorted(range(VOCAB - 2), key=lambda t: -len(PIECES[t]))
    while data:
        token = next(t for t in ranked if data.startswith(PIECES[t]))
        out.append(token)
        data = data[len(PIECES[token]) :]
    return out


class ToyDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join(PIECES[i] for i in ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class ToyTokenizer:
    def stream_decoder(self) -> ToyDecoder:
        return ToyDecoder()

    def encode(self, text: str) -> list[int]:
        return ids(text)


def decode(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[t] for t in tokens).decode("utf-8", "replace")


_M = (1 << 64) - 1


def mix(*values: int) -> int:
    """A 64-bit hash (the finaliser of SplitMix64 over a running sum)."""
    h = 0x9E3779B97F4A7C15
    for v in values:
        h = (h + v * 0xBF58476D1CE4E5B9) & _M
        h ^= h >> 30
        h = (h * 0x94D049BB133111EB) & _M
        h ^= h >> 31
    return h


#: How much each token likes to follow another, 0 to 1. [VOCAB, VOCAB]
HABITS = np.array([[(mix(5, last, v) >> 40) / (1 << 24) for v in range(VOCAB)] for last in range(VOCAB)])


@lru_cache(maxsize=1 << 16)
def _noise(state: int) -> NDArray[np.float64]:
    return np.array([(mix(state, v) >> 40) / (1 << 24) for v in range(VOCAB)])


class ToyExecutor(Executor):
    """``repeat``: how strongly the model continues as it did after an earlier occurrence of its last two tokens.
    ``end_at``: the position from which EOS becomes likely. ``forced``: a text that the model writes, whatever else:
    the token at position p is ``forced[p]`` where there is one."""

    def __init__(
        self,
        limits: Limits,
        speculative: Speculative,
        *,
        repeat: float = 0.8,
        forced: Sequence[int] = (),
        eos_rate: float = 0.02,
        seconds: float = 0.0,
    ) -> None:
        self.info = ExecutorInfo(
            max_batch_size=limits.max_batch_size,
            max_seq_len=limits.max_seq_len,
            prefill_chunk=limits.prefill_chunk,
            vocab_size=VOCAB,
            tiers=plan_tiers(limits, speculative),
            exact=True,
            device="toy",
        )
        shape = (limits.max_batch_size, limits.max_seq_len)
        self.kv_tokens = np.full(shape, -1, np.int64)
        self.kv_sums = np.zeros(shape, np.uint64)
        self.repeat, self.forced, self.eos_rate, self.seconds = repeat, list(forced), eos_rate, seconds
        self.before_step: Callable[[StepInput], None] = lambda batch: None
        self.before_prefill: Callable[[int, int, NDArray[np.int32]], None] = lambda slot, start, tokens: None
        self.poisoned: set[int] = set()  # a sequence whose prompt has one of these tokens gets no finite logit
        self.steps = 0
        self.rows_seen: list[list[int]] = []
        self.prefills: list[tuple[int, int, int]] = []
        self.copied: list[tuple[int, int, int]] = []
        self.closed = False
        self._thread: int | None = None

    def _write(self, slot: int, position: int, token: int) -> None:
        self._one_thread()
        before = int(self.kv_sums[slot, position - 1]) if position else 7
        self.kv_tokens[slot, position] = token
        self.kv_sums[slot, position] = mix(before, token, position)

    def _one_thread(self) -> None:
        assert self._thread in (None, threading.get_ident()), "the executor was called from two threads"
        self._thread = threading.get_ident()

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        assert 1 <= len(tokens) <= self.info.prefill_chunk and tokens.dtype == np.int32
        self.before_prefill(slot, start, tokens)
        self.prefills.append((slot, start, len(tokens)))
        for i, token in enumerate(tokens.tolist()):
            self._write(slot, start + i, token)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        assert source != target and length >= 1
        self.copied.append((source, target, length))
        self.kv_tokens[target, :length] = self.kv_tokens[source, :length]
        self.kv_sums[target, :length] = self.kv_sums[source, :length]

    def logits(self, slot: int, position: int) -> NDArray[np.float64]:
        """Of the row at ``position``, from the slot's content up to and including it. Checks that the content is
        consistent: each key belongs to the tokens before it."""
        state = int(self.kv_sums[slot, position])
        history = self.kv_tokens[slot, : position + 1]
        last = int(history[-1])
        # Mostly what the last token suggests, so that text repeats itself; a little of everything before it.
        out = 2 * HABITS[last] + _noise(state)
        assert (history >= 0).all(), "a row attends to positions that were never written"
        if position >= 2 and (mix(state, 991) >> 11) / (1 << 53) < self.repeat:
            same = np.flatnonzero((history[:-2] == history[-2]) & (history[1:-1] == history[-1]))
            if len(same):
                out[history[same[-1] + 2]] += 3.0
        out[EOS] = 4.0 if (mix(state, 17) >> 11) / (1 << 53) < self.eos_rate else -4.0
        out[EOT] = -4.0
        if position + 1 < len(self.forced):
            out[self.forced[position + 1]] += 50.0
        return out

    def step(self, batch: StepInput) -> StepOutput:
        count = len(batch.slots)
        assert len(set(batch.slots.tolist())) == count and len(batch.sampling) == count
        assert (batch.num_rows >= 1).all() and batch.num_rows.max() <= self.info.max_rows(count)
        assert (batch.lengths + batch.num_rows <= self.info.max_seq_len).all()
        assert len(batch.tokens) == batch.num_rows.sum() and batch.tokens.dtype == np.int32
        self.before_step(batch)
        if self.seconds:
            time.sleep(self.seconds)
        self.steps += 1
        self.rows_seen.append(batch.num_rows.tolist())
        targets = np.full(len(batch.tokens), -1, np.int32)
        accepted = np.zeros(count, np.int32)
        failed = np.zeros(count, np.bool_)
        logprobs: list[list[TokenLogprobs] | None] = [None] * count
        offsets = batch.offsets
        for b, state in enumerate(batch.sampling):
            slot, length = int(batch.slots[b]), int(batch.lengths[b])
            assert length + 1 == state.position
            rows = batch.tokens[offsets[b] : offsets[b + 1]].tolist()
            for i, token in enumerate(rows):
                self._write(slot, length + i, token)
            if self.poisoned and self.poisoned & set(self.kv_tokens[slot, : length + 1].tolist()):
                failed[b] = True
                continue
            entries = []
            for i in range(len(rows)):
                raw = self.logits(slot, length + i)
                target = sample(raw, state, rows[1 : i + 1], i)
                targets[offsets[b] + i] = target
                if state.params.logprobs is not None:
                    entries.append(log_probabilities(raw, target, state.params.logprobs))
                if i + 1 == len(rows) or rows[i + 1] != target:
                    accepted[b] = i
                    break
            if state.params.logprobs is not None:
                logprobs[b] = entries
        return StepOutput(targets, accepted, failed, logprobs)

    def close(self) -> None:
        self.closed = True


def log_probabilities(raw: NDArray[np.float64], token: int, top: int) -> TokenLogprobs:
    values = raw - np.log(np.exp(raw - raw.max()).sum()) - raw.max()
    order = np.argsort(-values, kind="stable")[:top]
    return TokenLogprobs(float(values[token]), order.astype(np.int32), values[order].astype(np.float32))


def sample(raw: NDArray[np.float64], state: SamplingState, drafts: Sequence[int], row: int) -> int:
    """Row ``row``'s target token, given the drafts before it. The rule of ``trtserve.sampling``, in its plainest form;
    the random number is this file's own."""
    p = state.params
    logits = raw.copy()
    if state.counts is not None:
        counts = (state.counts & (PROMPT_BIT - 1)).astype(np.float64)
        seen = state.counts != 0
        for d in drafts:
            counts[d] += 1
            seen[d] = True
        logits = np.where(
            seen, np.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty), logits
        )
        logits -= p.presence_penalty * (counts > 0) + p.frequency_penalty * counts
    logits[state.bias_tokens] += state.bias_values
    if row < state.bans_left:
        logits[state.ban_tokens] = -np.inf
    if p.greedy:
        return int(logits.argmax())
    logits = logits / p.temperature
    order = np.argsort(-logits, kind="stable")
    kept = order[: p.top_k] if p.top_k else order
    weights = np.exp(logits[kept] - logits[kept[0]])
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    weights = np.where((before < p.top_p) & (weights >= p.min_p * weights[0]), weights, 0)
    total = np.cumsum(weights)
    u = (mix(state.seed, state.position + row) >> 11) / (1 << 53)
    return int(kept[min(int(np.searchsorted(total, u * total[-1], side="right")), len(kept) - 1)])


class ToyProposal(NamedTuple):
    tokens: NDArray[np.int32]
    source: str | None


NOTHING = ToyProposal(np.empty(0, np.int32), None)


class ToySequence:
    """Records what the engine tells it and checks that calls come in their order."""

    def __init__(self, prompt: NDArray[np.int32], scope: str | None) -> None:
        self.tokens = prompt.tolist()
        self.prompt_len = len(prompt)
        self.scope = scope
        self.pending: int | None = None
        self.settled: list[int] = []
        self.window = 2
        self.backing_off = False
        self.rounds_skipped = 0
        self.finished: bool | None = None

    def observe(self, tokens: NDArray[np.int32]) -> None:
        assert self.pending is None and len(tokens)
        self.tokens += tokens.tolist()

    def settle(self, accepted: int) -> None:
        assert self.pending is not None and 0 <= accepted <= self.pending
        self.settled.append(accepted)
        self.pending = None

    def abandon(self) -> None:
        self.pending = None


class ToyDrafter:
    """Copies what followed the latest earlier occurrence of the last two tokens."""

    source = "history"

    def __init__(self) -> None:
        self.started: list[ToySequence] = []
        self.limits: list[list[int]] = []
        self.others: list[int] = []
        self.stored: list[tuple[str | None, list[int]]] = []

    def start(self, prompt: NDArray[np.int32], *, prediction: NDArray[np.int32], scope: str | None) -> ToySequence:
        self.started.append(ToySequence(prompt, scope))
        return self.started[-1]

    def propose(
        self, sequences: Sequence[ToySequence], limits: NDArray[np.int32], others: int = 0
    ) -> list[ToyProposal]:
        self.limits.append(limits.tolist())
        self.others.append(others)
        return [self.propose_one(s, limit) for s, limit in zip(sequences, limits.tolist(), strict=True)]

    def propose_one(self, sequence: ToySequence, limit: int) -> ToyProposal:
        assert limit >= 1 and sequence.pending is None
        drafts = self.drafts(sequence, limit)[:limit]
        if not drafts:
            return NOTHING
        sequence.pending = len(drafts)
        return ToyProposal(np.array(drafts, np.int32), self.source)

    def drafts(self, sequence: ToySequence, limit: int) -> list[int]:
        tokens = sequence.tokens
        for at in range(len(tokens) - 3, -1, -1):
            if tokens[at : at + 2] == tokens[-2:]:
                return tokens[at + 2 :]
        return []

    def finish(self, sequence: ToySequence, *, store: bool) -> None:
        assert sequence.finished is None
        sequence.finished = store
        if store:
            self.stored.append((sequence.scope, sequence.tokens))


class WrongDrafter(ToyDrafter):
    """Proposes what the model never chooses (the second end token): every draft of every round is rejected."""

    def drafts(self, sequence: ToySequence, limit: int) -> list[int]:
        return [EOT] * limit


class OracleDrafter(ToyDrafter):
    """Proposes the true continuation, learnt from finished outputs: prompt to whole text."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__()
        self.texts = texts

    def drafts(self, sequence: ToySequence, limit: int) -> list[int]:
        text = self.texts[tuple(sequence.tokens[: sequence.prompt_len])]
        return text[len(sequence.tokens) - sequence.prompt_len :]


def toy_limits(**limits: int) -> Limits:
    return Limits(**{"max_batch_size": 4, "max_seq_len": 128, "prefill_chunk": 16, **limits})


def toy_speculative(lookup: bool = True, **fields: int) -> Speculative:
    return Speculative(
        prompt_lookup=PromptLookup(
            **{"ngram": 2, "min_match": 2, "max_drafts": 8, "batch_max_drafts": 3, "max_seqs": 8, **fields}
        )
        if lookup
        else None
    )


def toy_manifest(limits: Limits, speculative: Speculative, **fields: object) -> Manifest:
    model = DecoderConfig(
        architecture="toy",
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=1024,
        rms_norm_eps=1e-5,
    )
    values: dict[str, object] = {
        "name": "toy",
        "target": "torch",
        "model": model,
        "tokenizer": TokenizerRecord(vocab_size=VOCAB, eos_token_ids=(EOS, EOT)),
        "limits": limits,
        "speculative": speculative,
        "tiers": plan_tiers(limits, speculative),
        "inputs_digest": "0" * 64,
        "weights_digest": "1" * 64,
        "tokenizer_digest": "2" * 64,
        "built_with": {"trtlookup": "0", "python": "3"},
    }
    return Manifest.model_validate({**values, **fields})


def reference(prompt: Sequence[int], params: SamplingParams, *, max_seq_len: int = 128, **executor: Any) -> list[int]:
    """What the model writes, one row at a time and with no engine: tokens up to and with the end token."""
    model = ToyExecutor(toy_limits(max_batch_size=1, max_seq_len=max_seq_len), toy_speculative(False), **executor)
    ends = () if params.ignore_eos else (EOS, EOT)
    state = SamplingState.start(params, np.array(prompt, np.int32), VOCAB, (*ends, *params.stop_token_ids))
    for position, token in enumerate(prompt[:-1]):
        model.prefill(0, position, np.array([token], np.int32))
    out: list[int] = []
    budget = min(params.max_tokens or max_seq_len, max_seq_len - len(prompt))
    last = prompt[-1]
    while len(out) < budget:
        step = model.step(
            StepInput(
                np.array([0], np.int32),
                np.array([len(prompt) - 1 + len(out)], np.int32),
                np.array([1], np.int32),
                np.array([last], np.int32),
                [state],
            )
        )
        last = int(step.targets[0])
        out.append(last)
        state.commit(step.targets)
        if last in ends or last in params.stop_token_ids:
            break
    return out


def collect(generation: Iterable[Delta | Finish]) -> Completion:
    """A generation read to its end, with the checks every stream must pass."""
    events = list(generation)
    done = Completion.collect(events)
    assert events[-1] is done.finish, "an event after the finish"
    for event in events[:-1]:
        assert isinstance(event, Delta) and "".join(text for text, _ in event.spans) == event.text
    assert done.finish.stats.completion_tokens == len(done.tokens)
    return done


def token_ids(completion: Completion) -> list[int]:
    return [t.token for t in completion.tokens]


def text_engine(
    make_engine: Callable[..., LocalEngine],
    prompt: Sequence[int],
    text: Sequence[int],
    *,
    drafts: bool = True,
    **options: Any,
) -> LocalEngine:
    """An engine whose model writes ``text`` after ``prompt``; with ``drafts``, all of it is proposed and accepted."""
    oracle = OracleDrafter({tuple(prompt): list(text)})
    options["executor"] = {"forced": [*prompt, *text], "eos_rate": 0.0, **options.get("executor", {})}
    return make_engine(drafter=oracle if drafts else None, **options)
