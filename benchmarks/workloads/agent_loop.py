"""Agent loops: a conversation that grows by one call and one result a step and is sent again each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from benchmarks.workloads.case import Case

_FILES = ["src/app.py", "src/store.py", "src/models.py", "tests/test_app.py", "tests/test_store.py", "README.md"]
_SYSTEM = (
    "You are an agent that works on a repository. Answer each message with one JSON object: "
    '{"thought": "...", "tool": "...", "arguments": {...}}. The tools are list_files, read_file, write_file, run_tests.'
)
_NAMES = ["load", "save", "parse", "render", "merge", "split", "check", "count"]


def _call(thought: str, tool: str, **arguments: str) -> str:
    return json.dumps({"thought": thought, "tool": tool, "arguments": arguments})


def loop(name: str, system: str, steps: list[tuple[str, str]], *, prefix: str) -> Iterator[Case]:
    """One case a step: (what the agent is told, what it answers) after all steps before it."""
    messages = [{"role": "system", "content": system}]
    for step, (received, answer) in enumerate(steps):
        messages.append({"role": "user", "content": received})
        yield Case("agent_loop", f"{name}-{step}", tuple(messages), prefix=prefix, answer=answer, group=name)
        messages.append({"role": "assistant", "content": answer})


def cases() -> Iterator[Case]:
    for nth in range(6):
        rng = random.Random(nth)
        path, name = rng.choice(_FILES[:3]), rng.choice(_NAMES)
        number = rng.randrange(10, 99)
        text = f"def {name}_{number}(items):\n    result = []\n    for item in items:\n        if item.is_valid():\n            result.append(item.value)\n    return result\n"
        fixed = text.replace("item.is_valid()", "item is not None and item.is_valid()")
        failure = f"FAILED {_FILES[3]}::test_{name}_{number}: AttributeError: 'NoneType' object has no attribute 'is_valid' in {path}, function {name}_{number}"
        steps = [
            ("Fix the failing test.", _call("I look at the files first.", "list_files", path=".")),
            (json.dumps({"files": _FILES}), _call("I run the tests to see what fails.", "run_tests", path="tests")),
            (
                json.dumps({"output": failure}),
                _call(f"The failure is in {path}, function {name}_{number}. I read the file.", "read_file", path=path),
            ),
            (
                json.dumps({"path": path, "content": text}),
                _call(f"The function {name}_{number} must skip None.", "write_file", path=path, content=fixed),
            ),
            (
                json.dumps({"written": path}),
                _call("I run the tests to see whether they pass.", "run_tests", path="tests"),
            ),
        ]
        yield from loop(f"loop-{nth}", _SYSTEM, steps, prefix='{"thought": "')
