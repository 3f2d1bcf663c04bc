"""Measured results as Markdown and plots: every figure in the pages comes from here, none is typed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

Result = Any
Parts = dict[str, dict[str, Any]]

TITLES = {
    "code_edit": "code edit", "json_rewrite": "JSON rewrite", "tool_echo": "tool-call echo", "prose": "prose",
    "mix": "all kinds", "agent_loop": "agent loop", "template": "template", "chat": "chat", "retrieval": "retrieval",
}  # fmt: skip
VARIANTS = {
    "own": "the model's own output",
    "prefix": "the model's own output after the answer's first lines",
    "forced": "output forced to the written answer; every verify is computed",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the rest are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _by(rows: Iterable[dict[str, Any]], key: str) -> dict[Any, list[dict[str, Any]]]:
    grouped: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row[key], []).append(row)
    return grouped


def _span(values: Iterable[float], form: str) -> str:
    """``least to most``, or the one figure that both are."""
    known = list(values)
    low, high = format(min(known), form), format(max(known), form)
    return low if low == high else f"{low} to {high}"


# ---- decode speed ---------------------------------------------------------------------------------------------------


def speed(result: Result) -> str:
    head = ("", "tokens/s off", "tokens/s on", "ratio", "tokens per round", "drafts accepted", "texts that differ")
    settings = result["settings"]
    out = [
        f"{settings['cases']} prompts a kind, at most {settings['tokens']} output tokens, forced ones at most "
        f"{settings['forced_tokens']}, median of {settings['repeats']} runs each, one sequence. The scheduler's own "
        f"time is {result['scheduler_share']:.1%} of the forwards'."
    ]
    for variant, rows in _by(result["rows"], "variant").items():
        body = [
            [
                TITLES[row["kind"]],
                f"{row['tokens'] / row['off_seconds']:.1f}",
                f"{row['tokens'] / row['on_seconds']:.1f}",
                f"**{row['ratio']:.2f}x**",
                f"{row['tokens_per_round']:.2f}",
                f"{row['accepted']} of {row['drafted']}",
                f"{row['differing']} of {row['cases']}",
            ]
            for row in rows
        ]
        out += [f"### {VARIANTS[variant].capitalize()}", table(head, body)]
    if any(row["transformers_seconds"] for row in result["rows"]):
        out += ["### Against transformers", against_transformers(result)]
    return "\n\n".join(out)


def against_transformers(result: Result) -> str:
    head = ("decode tokens/s", "generate", "prompt lookup", "trtlookup off", "trtlookup on", "off / generate",
            "on / prompt lookup")  # fmt: skip
    body = []
    for row in result["rows"]:
        if row["transformers_seconds"]:
            plain, looked_up, off, on = _rates(row)
            body.append(
                [
                    _kind(row),
                    *("" if rate is None else f"{rate:.1f}" for rate in (plain, looked_up, off, on)),
                    f"{off / plain:.2f}x" if off and plain else "",
                    f"{on / looked_up:.2f}x" if on and looked_up else "",
                ]
            )
    return f"Its model is float32, with the same weights, threads and prompts.\n\n{table(head, body)}"


def _kind(row: dict[str, Any]) -> str:
    return TITLES[row["kind"]] + ("" if row["variant"] == "own" else f" ({row['variant']})")


def _rates(row: dict[str, Any]) -> list[float | None]:
    keys = ("transformers_seconds", "transformers_lookup_seconds", "off_seconds", "on_seconds")
    return [row["tokens"] / row[key] if row[key] else None for key in keys]


def speed_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import bars, figure

    kinds = list(_by(result["rows"], "kind"))
    names = {"own": "own output", "prefix": "after a given start", "forced": "right answer forced"}
    series = {
        names[variant]: [next((r["ratio"] for r in rows if r["kind"] == kind), None) for kind in kinds]
        for variant, rows in _by(result["rows"], "variant").items()
    }
    with figure(path) as (axes,):
        bars(axes, [TITLES[k] for k in kinds], series, y="decode tokens/s, lookup on / off")
        axes.axhline(1, color="#8a8f98", linewidth=1)


def reference_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import bars, figure

    rows = [r for r in result["rows"] if r["transformers_seconds"] and r["variant"] == "own"]
    names = ("transformers", "transformers, prompt lookup", "trtlookup off", "trtlookup on")
    columns = list(zip(*(_rates(r) for r in rows), strict=True))
    series = {n: list(c) for n, c in zip(names, columns, strict=True) if any(v is not None for v in c)}
    with figure(path) as (axes,):
        bars(axes, [TITLES[r["kind"]] for r in rows], series, y="decode, tokens/s", digits=0)


def readme(result: Result, machine: dict[str, Any]) -> str:
    """The README's short table."""
    rows = []
    for kind, mine in _by(result["rows"], "kind").items():
        ratios = {row["variant"]: f"{row['ratio']:.2f}x" for row in mine}
        rows.append([TITLES[kind], *(ratios.get(v, "") for v in VARIANTS)])
    head = ("decode tokens/s, lookup on over off", "model's own output", "after a given start", "right answer forced")
    return (
        f"{table(head, rows)}\n\nSmolLM2-135M, float32, {machine['threads']} threads of an {machine['cpu']}, one "
        "sequence, greedy; written by `make bench`. A model this small often repeats itself, which flatters the first "
        "two columns. More figures, and transformers beside them: [docs/benchmarks.md](docs/benchmarks.md)."
    )


#: What the README names, with each rule's variants, of which the best is shown; and those with memory across requests.
README_POLICIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "transformers' prompt lookup": (("transformers 10/2",), ()),
    "vLLM's n-gram": (("vLLM earliest 8/2-5", "vLLM latest 8/2-5 padded"), ()),
    "TensorRT-LLM's suffix automaton": (("TensorRT-LLM SA 8", "TensorRT-LLM SA 16"), ("TensorRT-LLM SA 8 +shared",)),
    "SuffixDecoding": (("SuffixDecoding",), ("SuffixDecoding +shared",)),
    "trtlookup": (("adaptive",), ("adaptive +shared",)),
}


def readme_policies(result: Result, machine: dict[str, Any]) -> str:
    """The README's comparison of drafting rules, on the traces that ours was not chosen on."""

    def best(policies: Sequence[str], curve: str) -> str:
        means = [
            geometric_mean([by_curve[curve]["speedup"] for by_curve in result["policies"][policy].values()])
            for policy in policies
        ]
        return f"{max(means):.2f}x" if means else ""

    rows = [
        [title, *(best(policies, curve) for curve in SHOWN_CURVES for policies in (alone, shared))]
        for title, (alone, shared) in README_POLICIES.items()
    ]
    heads = [f"{title}{memory}" for title in SHOWN_CURVES.values() for memory in ("", ", with earlier requests")]
    traces = sum(w["traces"] for w in result["workloads"].values())
    return (
        f"{table(['speed-up of decoding, modelled', *heads], rows)}\n\n{traces} recorded answers to tasks of eight "
        "kinds, prose among them, that no rule was tuned on, put through each and priced by a cost curve; geometric "
        "means. Where another is faster, and all else: [docs/policy.md](docs/policy.md)."
    )


# ---- batches --------------------------------------------------------------------------------------------------------


def batches(result: Result) -> str:
    head = ("", "at once", "tokens/s off", "tokens/s on", "ratio", "spread", "tokens per round", "drafts accepted",
            "scheduler's share off, on", "texts that differ")  # fmt: skip
    body = [
        [
            TITLES.get(row["set"], row["set"]),
            str(row["batch"]),
            f"{row['off_tokens_per_second']:.1f}",
            f"{row['on_tokens_per_second']:.1f}",
            f"**{row['ratio']:.3f}x**",
            f"±{row['spread']:.3f}",
            f"{row['tokens_per_round']:.2f}",
            f"{row['accepted']} of {row['drafted']}",
            f"{row['off_scheduler']:.1%}, {row['on_scheduler']:.1%}",
            f"{row['differing']} of {row['texts']}",
        ]
        for row in result["rows"]
    ]
    sizes = sorted({row["batch"] for row in result["modelled"]})
    under = [
        [f"{curve}, {TITLES.get(name, name)}", *(f"{r['speedup']:.3f}x" for r in sorted(of, key=lambda r: r["batch"]))]
        for curve, rows in _by(result["modelled"], "curve").items()
        for name, of in _by(rows, "set").items()
    ]
    return "\n\n".join(
        [
            f"Real runs, float32 weights, at most {result['tokens']} output tokens a request, {result['repeats']} "
            "turns of the largest batch and more of the small ones; the batch is whole until a turn ends. The spread "
            "is half the distance between the quartiles of the turns' ratios.",
            table(head, body),
            "By replay under cost curves, the model's own recorded outputs side by side:",
            table(["at once", *map(str, sizes)], under),
        ]
    )


def batches_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import figure, lines

    measured = {
        f"{TITLES.get(name, name)}, measured": [(r["batch"], r["ratio"]) for r in rows]
        for name, rows in _by(result["rows"], "set").items()
    }
    modelled = {
        f"{TITLES.get(name, name)}, GPU's curve": [(r["batch"], r["speedup"]) for r in of]
        for curve, rows in _by(result["modelled"], "curve").items()
        if curve == "gpu-modelled"
        for name, of in _by(rows, "set").items()
    }
    with figure(path) as (axes,):
        lines(axes, measured | modelled, x="sequences at once", y="tokens/s, lookup on / off", log="x", ticks=True)
        axes.axhline(1, color="#8a8f98", linewidth=1)


# ---- costs ----------------------------------------------------------------------------------------------------------


def verify(result: Result) -> str:
    rows = [
        [name, *(f"{seconds * 1e3:.1f} ms ({seconds / by_rows['1']:.2f})" for seconds in by_rows.values())]
        for name, by_rows in result.items()
    ]
    counts = next(iter(result.values()))
    head = ("engine", *(f"{count} rows" if count != "1" else "1 row" for count in counts))
    return f"Median time of one forward by rows, one sequence; in brackets to one row.\n\n{table(head, rows)}"


def verify_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import figure, lines

    series = {
        name: [(int(rows), seconds / by_rows["1"]) for rows, seconds in by_rows.items()]
        for name, by_rows in result.items()
    }
    with figure(path) as (axes,):
        lines(axes, series, x="rows of one verify", y="time, in verifies of one row")


def host(result: Result) -> str:
    rows = [
        [
            f"{p['tokens']:,}",
            f"{p['round_us']:.2f}",
            f"{p['batch_round_us_per_sequence']:.2f}",
            f"{p['rescan_us']:,.0f}",
            f"{p['index_ms']:.2f}",
            f"{p['bytes_per_token']:.1f}",
        ]
        for p in result
    ]
    head = ("history, tokens", "round, µs", "of a batch of 8, µs", "plain rescan, µs", "index, ms", "bytes/token")
    out = [
        "A round is propose, observe and settle of one sequence, called from Python, in processor time; the index is "
        "built once, of a prompt of that length.",
        table(head, rows),
    ]
    if "drafters" in result[0]:
        lengths = [f"{p['tokens']:,}" for p in result]
        for figure, what in (("copying_us", "in the middle of a copy"), ("searching_us", "where nothing is copied")):
            body = [[name, *(f"{p['drafters'][name][figure]:,.2f}" for p in result)] for name in result[0]["drafters"]]
            out += [f"A round and sequence {what}, µs, by the history's tokens:", table(["", *lengths], body)]
    return "\n\n".join(out)


def host_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import figure, lines

    if "drafters" in result[0]:
        of = {
            name: [(p["tokens"], p["drafters"][name]["copying_us"]) for p in result] for name in result[0]["drafters"]
        }
    else:
        names = {"round_us": "ours", "batch_round_us_per_sequence": "ours, of a batch of 8", "rescan_us": "rescan"}
        of = {name: [(p["tokens"], p[key]) for p in result] for key, name in names.items()}
    with figure(path, height=4.2) as (axes,):
        lines(axes, of, x="history, tokens", y="a round and sequence, µs", log="xy", ticks=True)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def accept(result: Result) -> str:
    rows = [
        [p["logits"], f"{p['seconds'] * 1e3:.2f}", f"{p['argmax_seconds'] * 1e3:.2f}", f"{p['ratio']:.2f}x"]
        for p in result["accept"]
    ]
    sampled = [[p["sampling"], f"{p['row_seconds'] * 1e6:.0f}"] for p in result["sampled"]]
    head = ("logits, 8 x 9 x 49,152, every row read", "accept, ms", "torch.argmax, ms", "accept / argmax")
    return "\n\n".join(
        [
            f"{result['threads']} threads, {result['instruction_set']}.",
            table(head, rows),
            table(("sampled, one row of 49,152 on one thread", "µs"), sampled),
        ]
    )


def accept_summary(result: Result, machine: dict[str, Any]) -> str:
    times = ", ".join(
        f"{p['seconds'] * 1e3:.1f} ms against {p['argmax_seconds'] * 1e3:.1f} in {p['logits']}"
        for p in result["accept"]
    )
    sampled = ", ".join(f"{p['row_seconds'] * 1e3:.2f} ms with {p['sampling']}" for p in result["sampled"])
    return (
        f"On the host, `python -m benchmarks.accept_host` ({result['threads']} threads of an {machine['cpu']}, "
        f"{result['instruction_set']}, 8 x 9 x 49,152, every row read): accept takes, against `torch.argmax` over the "
        f"same logits, {times}. A sampled row of 49,152 takes on one thread {sampled}."
    )


# ---- drafting -------------------------------------------------------------------------------------------------------

#: What the plot of the policies shows beside ours; docs/policy.md has all of them.
SHOWN_POLICIES = {
    "transformers 10/2": "transformers",
    "TensorRT-LLM SA 8": "suffix automaton",
    "SuffixDecoding": "SuffixDecoding",
    "adaptive": "trtlookup",
    "oracle 32": "oracle",
}
SHOWN_CURVES = {"cpu-fp32": "this CPU, float32", "gpu-modelled": "a GPU (modelled)"}


def _mean_speedups(result: Result, curve: str) -> dict[str, list[float]]:
    """Geometric means over a workload's labels, by policy; workloads in a fixed order."""
    kinds = sorted({w.split(" ")[0] for w in result["workloads"]})
    out: dict[str, list[float]] = {}
    for policy, title in SHOWN_POLICIES.items():
        for kind in kinds:
            values = [
                by_curve[curve]["speedup"]
                for workload, by_curve in result["policies"][policy].items()
                if workload.split(" ")[0] == kind
            ]
            out.setdefault(title, []).append(geometric_mean(values))
    return out


def policies(result: Result) -> str:
    kinds = sorted({w.split(" ")[0] for w in result["workloads"]})
    traces = sum(w["traces"] for w in result["workloads"].values())
    out = [
        f"Modelled, not timed: {traces} recorded traces put through each policy and priced by a cost curve. Speed-up "
        "of decoding over plain, geometric mean over a workload's own, prefixed and written answers; the oracle knows "
        "the output. All policies, workloads and curves, and how to read them: [policy.md](policy.md)."
    ]
    for curve, title in SHOWN_CURVES.items():
        if curve in result["curves"]:
            speeds = _mean_speedups(result, curve)
            body = [[TITLES.get(k, k), *(f"{speeds[n][i]:.2f}x" for n in speeds)] for i, k in enumerate(kinds)]
            out.append(table([title, *speeds], body))
    return "\n\n".join(out)


def policies_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import bars, figure

    kinds = sorted({w.split(" ")[0] for w in result["workloads"]})
    curves = [c for c in SHOWN_CURVES if c in result["curves"]]
    with figure(path, height=3.4, width=9) as (axes,):
        curve = curves[-1]
        bars(axes, [TITLES.get(k, k).replace(" ", "\n") for k in kinds], _mean_speedups(result, curve),
             y="modelled speed-up of decoding")  # fmt: skip
        axes.set_title(f"Under the cost curve of {SHOWN_CURVES[curve]}", fontsize=10)


def prediction(result: Result) -> str:
    from benchmarks.prediction import KINDS, WAYS

    rows = [
        [
            TITLES[kind],
            *(
                f"{result['kinds'][kind]['tokens_per_round'][w]:.2f} ({result['kinds'][kind]['speedup'][w]:.2f}x)"
                for w in WAYS
            ),
            f"{result['kinds'][kind]['slower']} of {result['kinds'][kind]['cases']}",
        ]
        for kind in KINDS
    ]
    return (
        f"An edit with its file in the prompt, as the prediction, or both: written answers forced, tokens per round, "
        f"and in brackets decoding's speed-up over plain, modelled under `{result['curve']}`.\n\n"
        + table(["", *WAYS, "cases slower as the prediction"], rows)
    )


def prediction_summary(result: Result, machine: dict[str, Any]) -> str:
    kinds = result["kinds"]
    told = [
        f"{of['tokens_per_round']['as the prediction']:.1f} tokens per round against "
        f"{of['tokens_per_round']['in the prompt']:.1f} ({of['speedup']['as the prediction']:.1f}x of plain decoding "
        f"against {of['speedup']['in the prompt']:.1f}x under the modelled GPU) for {TITLES[kind]}s, with "
        + (
            f"{of['slower']} of {of['cases']} single cases slower, the worst by {of['worst']:.0%}"
            if of["slower"]
            else f"none of {of['cases']} single cases slower"
        )
        for kind, of in kinds.items()
    ]
    return (
        "**Predicted output.** `python -m benchmarks.prediction ENGINE_DIR`, written edits forced, the file sent as "
        f"`prediction` and not in the prompt against the file in the prompt: {'; '.join(told)}."
    )


def draft_model(result: Result) -> str:
    from benchmarks.draft_model import show

    return show(result)


def draft_model_summary(result: Result, machine: dict[str, Any]) -> str:
    shown = {
        "prose (model)": "prose",
        "chat (model)": "chat",
        "code_edit (model)": "code edits, the small model's own",
        "code_edit (written)": "code edits, right ones",
        "retrieval (written)": "retrieval, right answers",
    }
    by_workload = _by(result["modelled"], "workload")
    chances = list(_by(result["modelled"], "p"))
    head = (
        f"modelled: a GPU's cost curve, forced outputs, a draft step of {result['draft_step']:g} of a step, each draft "
        "right with probability p",
        "copies",
        *(f"{way}, p {p:g}" for p in chances for way in ("chains", "both")),
    )
    body = []
    for workload, title in shown.items():
        rows = by_workload.get(workload, [])
        if rows:
            figures = [rows[0]["copies"], *(row[way] for row in rows for way in ("chains", "both"))]
            body.append([title, *(f"{v:.2f}" for v in figures)])
    out = [
        "What it gives, from `python -m benchmarks.draft_model ENGINE_DIR`, in speed-up of decoding over plain:",
        table(head, body),
    ]
    if rows := result.get("measured"):
        layers = ", ".join(str(k) for k in sorted(_by(rows, "layers")))
        beside = [row["speedup"]["both, gated"] / row["speedup"]["copies"] for row in rows]
        differing = sum(row["differing"] for row in rows)
        out.append(
            "Measured with a real second model it does not pay here, because there is none worth having: nothing "
            f"smaller shares SmolLM2-135M's tokenizer, and its own first layers ({layers} of 30), untrained for it, "
            f"have {_span((r['acceptance'] for r in rows), '.0%')} of their drafts accepted at "
            f"{_span((r['draft_step'] for r in rows), '.2f')} of a step each on a CPU. Chains at full length "
            f"always make decoding {_span((r['speedup']['chains'] for r in rows), '.2f')} times as fast; the gate, "
            f"starting without knowledge, {_span((r['speedup']['chains, gated'] for r in rows), '.2f')} alone, and "
            f"beside copies {_span(beside, '.2f')} of copies alone (processor time, one thread). "
            f"{'The texts were the same in all of them.' if not differing else f'{differing} texts differed.'}"
        )
    return "\n\n".join(out)


def draft_model_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import bars, figure

    workloads = ("prose (model)", "chat (model)", "code_edit (model)", "retrieval (written)")
    rows = {(r["workload"], r["p"]): r for r in result["modelled"]}
    chances = sorted({p for _, p in rows})
    known = [w for w in workloads if (w, chances[0]) in rows]
    series: dict[str, list[float | None]] = {"copies": [rows[w, chances[0]]["copies"] for w in known]}
    for p in chances:
        series[f"chains, p {p:g}"] = [rows[w, p]["chains"] for w in known]
        series[f"both, p {p:g}"] = [rows[w, p]["both"] for w in known]
    with figure(path) as (axes,):
        bars(axes, known, series, y="modelled speed-up of decoding")
        axes.legend(fontsize=7, ncols=2)


def shared_cache(result: Result) -> str:
    from benchmarks.shared_cache import DOCUMENT, report

    return (
        f"A replay of cross-request workloads, each group of requests a tenant with a scope of its own, "
        f"{result['between']} other documents of {DOCUMENT:,} tokens between two requests of a tenant; gain is "
        f"modelled decode time without the cache over that with it.\n\n{report(result)}"
    )


def shared_cache_plot(result: Result, path: Path) -> None:
    from benchmarks.plots import figure, lines

    by_kind = _by(result["gains"], "kind")
    with figure(path, len(by_kind), width=9.5) as panels:
        for axes, (kind, rows) in zip(panels, by_kind.items(), strict=True):
            series = {
                f"{scopes} scope{'s' if scopes > 1 else ''}": [(r["mb"], r["gain"]) for r in of]
                for scopes, of in _by(rows, "scopes").items()
            }
            lines(axes, series, x="shared_cache.mb, MiB", y="decode time, without / with", log="x", ticks=True)
            axes.set_title(TITLES.get(kind, kind), fontsize=10)


# ---- other targets and front ends -----------------------------------------------------------------------------------


def tensorrt_rows(result: Result, machine: dict[str, Any]) -> str:
    labels = [p["label"] for p in result["builds"][0]["profiles"]]
    body = []
    for build in result["builds"]:
        activations = {p["label"]: p["activation_bytes"] / 1e6 for p in build["profiles"]}
        body.append(
            [str(build["max_drafts"]), f"{build['plan_bytes'] / 1e6:.1f}", *(f"{activations[n]:.1f}" for n in labels)]
        )
    builds = result["builds"]
    return (
        f"{table(('`max_drafts`', 'plan, MB', *(f'{n}: activations, MB' for n in labels)), body)}\n\n"
        f"`{result['recipe']}`, {result['layers']} layers, {builds[0]['runtime']}."
    )


def tensorrt_built(result: Result, machine: dict[str, Any]) -> str:
    """What the recipe that ships takes to build, in each data type."""
    built = result["as_shipped"]
    takes = {
        f"plan, {len(built['float16']['profiles'])} profiles": lambda b: f"{b['plan_bytes']:,} bytes",
        "build, processor time": lambda b: f"{b['processor_seconds']:.0f} s",
        "peak memory of the build": lambda b: f"{b['peak_rss_bytes'] / 1e9:.1f} GB",
    }
    profiles = [
        [p["label"], str(p["batch"]), str(p["rows"]), f"{p['activation_bytes']:,}", f"{p['predicted_bytes']:,}"]
        for p in built["float16"]["profiles"]
    ]
    return "\n\n".join((
        table(("", *built), [[name, *(show(b) for b in built.values())] for name, show in takes.items()]),
        table(("profile, float16", "batch", "rows", "activation bytes, logged", "predicted by `--plan`"), profiles),
    ))  # fmt: skip


def front_ends(result: Result, machine: dict[str, Any]) -> str:
    from benchmarks.load import Level
    from benchmarks.load import table as levels

    settings = result["settings"]
    return (
        f"{levels([Level(**level) for level in result['levels']])}\n\n{settings['engine']}, {settings['requests']} "
        f"requests of {settings['tokens']} output tokens for each row, kinds {settings['kinds']}, median of "
        f"{settings['repeats']} runs; {machine['threads']} threads of an {machine['cpu']}, which the clients share, "
        f"{machine['date']}. Texts are the same from all of them."
    )


# ---- the page -------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A part's place on the page. ``plots``: file name to what draws it and its description."""

    title: str
    text: Callable[[Result], str]
    plots: dict[str, tuple[Callable[[Result, Path], None], str]]


SECTIONS: dict[str, Section] = {
    "speed-float32": Section(
        "Decode speed, float32 weights",
        speed,
        {
            "speed-float32.svg": (speed_plot, "decode speed with lookup over without, float32"),
            "reference.svg": (reference_plot, "decode tokens per second beside transformers"),
        },
    ),
    "speed-float16": Section(
        "Decode speed, float16 weights",
        speed,
        {"speed-float16.svg": (speed_plot, "decode speed with lookup over without, float16")},
    ),
    "batches": Section(
        "Batches", batches, {"batches.svg": (batches_plot, "throughput with lookup over without, by batch")}
    ),
    "verify": Section(
        "What a verify costs", verify, {"verify.svg": (verify_plot, "time of a verify by its rows, relative to one")}
    ),
    "host": Section(
        "The drafter's cost on the host",
        host,
        {"host.svg": (host_plot, "microseconds of a drafting round by the history's length")},
    ),
    "accept": Section("Acceptance on the host", accept, {}),
    "replay": Section(
        "Drafting policies", policies, {"policies.svg": (policies_plot, "modelled speed-up by workload and policy")}
    ),
    "prediction": Section("Predicted output", prediction, {}),
    "shared_cache": Section(
        "The shared cache", shared_cache, {"shared-cache.svg": (shared_cache_plot, "gain by size and scopes")}
    ),
    "draft_model": Section(
        "A draft model beside copies",
        draft_model,
        {"draft-model.svg": (draft_model_plot, "modelled speed-up of copies, chains and both")},
    ),
}


def _where(machine: dict[str, Any]) -> str:
    return (
        f"Measured {machine['date']} on {machine['cpu']} ({machine['cores']} cores, {machine['threads']} threads), "
        f"Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}, numpy "
        f"{machine['numpy']}, trtlookup {machine['trtlookup']}."
    )


def page(parts: Parts) -> str:
    """docs/benchmarks.md. A part that was measured elsewhere or at another time than most says so itself."""
    wheres = [_where(part["machine"]) for part in parts.values() if "machine" in part]
    most = max(wheres, key=wheres.count, default="Nothing has been measured yet.")
    lines = [
        "# Benchmarks",
        "Written by `make bench`; do not edit. Ratios come from one process in which the alternatives take turns.",
        f"{most} The model is SmolLM2-135M-Instruct, greedy.",
        "A model this small often repeats itself, above all in its own JSON, and lookup makes repetition fast: its own "
        "output flatters every prompt lookup, this one and transformers'. The forced columns say what right answers "
        "give.",
    ]
    for name, section in SECTIONS.items():
        part = parts.get(name, {})
        if not part:
            continue
        lines.append(f"## {section.title}")
        if "failed" in part:
            lines.append(f"**The last measurement failed:** `{part['failed']}`. What follows is from before.")
        if "result" not in part:
            continue
        if "machine" in part and _where(part["machine"]) != most:
            lines.append(_where(part["machine"]))
        lines += [f"![{description}](plots/{file})" for file, (_, description) in section.plots.items()]
        lines.append(section.text(part["result"]))
    return "\n\n".join(lines).rstrip() + "\n"


def draw(parts: Parts, directory: Path) -> None:
    """Every plot of the page. Raises RuntimeError where matplotlib is missing."""
    for name, section in SECTIONS.items():
        if "result" in parts.get(name, {}):
            for file, (plot, _) in section.plots.items():
                plot(parts[name]["result"], directory / file)
