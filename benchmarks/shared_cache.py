"""What the shared cache gains, by its size and by how many scopes it keeps, and what it costs.

``python -m benchmarks.shared_cache [--label written] [--mb 1 4 16 64] [--scopes 1 4 16 64] [--json FILE]``

The gain is a replay of the cross-request workloads (``template``, ``agent_loop``, ``code_edit``) with the real drafter
and cache under the default cost model (a draft row costs 0.05 of a step), against the same replay without the cache.
Every group of cases (one template, one conversation, one file) is a tenant with a scope of its own. The tenants take
turns, so with fewer scopes than tenants each finds its own dropped when it comes back. And a tenant has other business:
between two of its requests, documents of synthetic text go into its scope, so a small share has overwritten what the
next request could have copied.

``hit rate`` is the share of output tokens that were copied from the cache.

The cost: CPU time of one insert of 8,192 tokens, new, re-sent, and a scope's first, for which its memory
is taken from the system; and of the file: saving 64 MiB, restoring it, and how
long a call on the cache takes while another thread saves.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import table
from benchmarks.traces.read import shipped
from trtserve.engine.protocol import Scope
from trtserve.lookup.drafter import SequenceDrafter
from trtserve.lookup.persistence import Persistence
from trtserve.lookup.shared import SharedCache
from trtserve.replay.core import Limits, Replay, replay
from trtserve.replay.curves import CostModel
from trtserve.replay.policies import NativePolicy
from trtserve.replay.traces import Trace
from trtserve.settings import PromptLookup

KINDS = ("template", "agent_loop", "code_edit")
DOCUMENT = 2048  # tokens of a document of a tenant's other business
INSERT = 8192
SAVED_MB, SAVED_SCOPES = 64, 4


class Tenants(NativePolicy):
    """The project's drafter, every group of traces in a scope of its own, with other documents between its requests."""

    def __init__(self, settings: PromptLookup, shared: SharedCache | None, between: int) -> None:
        super().__init__(settings, shared=shared)
        self._shared = shared
        self._between = between
        self._draw = np.random.default_rng(0)

    def start(self, trace: Trace) -> SequenceDrafter:
        scope = tenant(trace)
        if self._shared is not None:
            for _ in range(self._between):
                self._shared.insert(scope, new_text(self._draw, DOCUMENT))
        return self._drafter.start(trace.prompt, prediction=trace.prediction, scope=scope)


def tenant(trace: Trace) -> str:
    return f"{trace.kind}/{trace.group or trace.name}"


def new_text(draw: np.random.Generator, count: int) -> NDArray[np.int32]:
    return draw.integers(0, 50_000, count, dtype=np.int32)


def in_turns(traces: Sequence[Trace]) -> list[Trace]:
    """Each tenant's first request, then each one's second, and so on."""
    groups: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        groups[tenant(trace)].append(trace)
    return [t for turn in zip_longest(*groups.values()) for t in turn if t is not None]


def replayed(traces: Sequence[Trace], settings: PromptLookup, shared: SharedCache | None, between: int) -> Replay:
    return replay(traces, Tenants(settings, shared, between), limits=Limits(lone=settings.max_drafts), keep_rounds=True)


def of_kind(run: Replay, kind: str, cost: Callable[[int, int], float]) -> tuple[float, float]:
    """(share of output tokens copied from the cache, decode time) of one workload within a run of batch 1."""
    tokens = copied = 0
    seconds = 0.0
    for result in (r for r in run.results if r.trace.kind == kind):
        tokens += result.tokens
        for round in result.kept:
            seconds += cost(1, round.draft.extra_rows)
            copied += round.accepted if round.draft.source == "shared" else 0
    return copied / max(tokens, 1), seconds


def gains(traces: Sequence[Trace], sizes: Sequence[int], scopes: Sequence[int], between: int) -> list[dict[str, Any]]:
    """One entry per size, number of scopes and workload. Combinations whose shares are too small are left out."""
    settings, cost = PromptLookup(), CostModel(None).time
    off = replayed(traces, settings, None, between)
    rows: list[dict[str, Any]] = []
    for mb in sizes:
        for count in scopes:
            try:
                shared = SharedCache(mb, count, settings.shared_key_length)
            except ValueError:
                continue
            run = replayed(traces, settings, shared, between)
            for kind in KINDS:
                hit_rate, on_time = of_kind(run, kind, cost)
                rows.append(
                    {
                        "mb": mb,
                        "scopes": count,
                        "kind": kind,
                        "share_tokens": shared.share[2],
                        "hit_rate": hit_rate,
                        "gain": of_kind(off, kind, cost)[1] / on_time,
                        "evictions": shared.stats().evictions,
                    }
                )
    return rows


def insert_times(sizes: Sequence[int], turns: int = 15) -> list[dict[str, float]]:
    """CPU time of one insert into a full ring: random text, and text that is known already; and into a new scope."""
    rows = []

    def insert(shared: SharedCache, text: NDArray[np.int32], times: list[float]) -> None:
        begin = time.thread_time()
        shared.insert("a", text)
        times.append((time.thread_time() - begin) * 1e3)

    for mb in sizes:
        shared = SharedCache(mb, 1, PromptLookup().shared_key_length)
        draw = np.random.default_rng(1)
        for _ in range(2 * shared.share[2] // INSERT + 1):
            shared.insert("a", new_text(draw, INSERT))
        new: list[float] = []
        known: list[float] = []
        first: list[float] = []
        for _ in range(turns):
            text = new_text(draw, INSERT)
            insert(shared, text, new)
            insert(shared, text, known)
            insert(SharedCache(mb, 1, PromptLookup().shared_key_length), text, first)
        medians = {"new_ms": new, "known_ms": known, "first_ms": first}
        rows.append({"mb": mb, **{name: statistics.median(times) for name, times in medians.items()}})
    return rows


class _Owner(threading.Thread):
    """Calls the cache every now and then, as the scheduler does, and notes how long each call took."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call
        self._stop_asked = threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        while not self._stop_asked.wait(0.0002):
            begin = time.perf_counter()
            self._call()
            self.times.append(time.perf_counter() - begin)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()

    def microseconds(self) -> dict[str, float]:
        ordered = sorted(self.times)
        return {
            "median_us": ordered[len(ordered) // 2] * 1e6,
            "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
            "max_us": ordered[-1] * 1e6,
        }


def file_times() -> dict[str, Any]:
    """Saving and restoring a full cache, and calls on it meanwhile and without."""
    draw = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cache"
        shared = SharedCache(SAVED_MB, SAVED_SCOPES, PromptLookup().shared_key_length)
        file = Persistence(shared, path, "0" * 64)
        names = [file.names(Scope(str(i))) for i in range(SAVED_SCOPES)]
        for name in names:
            for _ in range(shared.share[2] // INSERT + 1):
                shared.insert(name, new_text(draw, INSERT))
        tail = new_text(draw, 64)
        idle = _Owner(lambda: shared.propose(names[0], tail, 8))
        idle.start()
        time.sleep(0.5)
        idle.stop()
        saving = _Owner(lambda: shared.propose(names[0], tail, 8))
        saving.start()
        begin = time.perf_counter()
        file.save()
        save_seconds = time.perf_counter() - begin
        saving.stop()
        file.close()
        size = path.stat().st_size
        restored = SharedCache(SAVED_MB, SAVED_SCOPES, PromptLookup().shared_key_length)
        begin = time.perf_counter()
        again = Persistence(restored, path, "0" * 64)
        restore_seconds = time.perf_counter() - begin
        again.close()
    return {
        "mb": SAVED_MB,
        "file_bytes": size,
        "save_seconds": save_seconds,
        "restore_seconds": restore_seconds,
        "call_idle": idle.microseconds(),
        "call_while_saving": saving.microseconds(),
    }


def report(results: dict[str, Any]) -> str:
    """The results in Markdown."""
    lines = []
    for kind in KINDS:
        rows = [r for r in results["gains"] if r["kind"] == kind]
        counts = sorted({r["scopes"] for r in rows})
        by = {(r["mb"], r["scopes"]): r for r in rows}
        lines += [f"### {kind} ({results['tenants'][kind]} of {sum(results['tenants'].values())} tenants)", ""]
        body = [
            [
                f"{mb} MiB",
                *(
                    f"{r['hit_rate']:.0%}, {r['gain']:.2f}x" if (r := by.get((mb, count))) else "share too small"
                    for count in counts
                ),
            ]
            for mb in sorted({r["mb"] for r in rows})
        ]
        lines += [table(["hit rate, gain", *(f"{c} scopes" for c in counts)], body), ""]
    kinds = ("new_ms", "known_ms", "first_ms")
    inserts = [[f"{r['mb']} MiB", *(f"{r[kind]:.2f}" for kind in kinds)] for r in results["inserts"]]
    lines += [
        "### One insert of 8,192 tokens, CPU time",
        "",
        table(["one scope of", "new, ms", "re-sent, ms", "a scope's first, ms"], inserts),
    ]
    f = results["file"]
    calls = [
        [name, *(f"{f[key][k]:.0f}" for k in ("median_us", "p99_us", "max_us"))]
        for name, key in (("without a save", "call_idle"), ("while another thread saves", "call_while_saving"))
    ]
    lines += [
        "",
        f"### The file of {f['mb']} MiB: {f['file_bytes'] / 2**20:.0f} MiB",
        "",
        f"Saved in {f['save_seconds']:.2f} s, restored in {f['restore_seconds']:.2f} s.",
        "",
        table(["a proposal, wall time", "median, µs", "99%, µs", "longest, µs"], calls),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the shared cache gains and costs.")
    parser.add_argument("--label", default="written", help="which traces: written, model or prefix")
    parser.add_argument("--mb", type=int, nargs="+", default=(1, 4, 16, 64), help="sizes of the cache, in MiB")
    parser.add_argument("--scopes", type=int, nargs="+", default=(1, 4, 16, 64), help="scopes kept")
    parser.add_argument(
        "--between", type=int, default=8, help=f"documents of {DOCUMENT} tokens between two requests of a tenant"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    traces = in_turns([t for t in shipped((arguments.label,)) if t.kind in KINDS])
    results = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "label": arguments.label,
        "between": arguments.between,
        "policy": PromptLookup().policy,
        "tenants": {kind: len({tenant(t) for t in traces if t.kind == kind}) for kind in KINDS},
        "gains": gains(traces, arguments.mb, arguments.scopes, arguments.between),
        "inserts": insert_times(arguments.mb),
        "file": file_times(),
    }
    print(report(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
