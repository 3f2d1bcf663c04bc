"""The tests of the tests: every fault of mutants.yaml, put into the kernels' source, is found.

A mutant is compiled for the emulation and given to battery.py; what only a race can show goes to ThreadSanitizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from .kernel_emulation import CSRC, EMULATION, compile_emulated, compiler

MUTANTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())
BATTERY = Path(__file__).parent / "battery.py"
#: A race is seen where threads happen to meet, which on a busy machine one run can miss.
SANITIZED_RUNS = 4
SANITIZER = ("-DEMU_THREADS", "-fsanitize=thread", "-g1", "-O0")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")]


def succeeds(*command: str | Path, **environment: str) -> bool:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, timeout=120, env={**os.environ, **environment})
    except subprocess.TimeoutExpired:  # a fault may show as a loop without end
        return False
    return done.returncode == 0


def passes_battery(csrc: Path, header: Path, work: Path, file: str = "") -> bool:
    library = compile_emulated(csrc, "emulated.cpp", work / "kernels.so", "-O0", "-include", str(header))
    return succeeds(sys.executable, BATTERY, library, file)


def passes_sanitizer(csrc: Path, work: Path) -> bool:
    program = compile_emulated(csrc, "races.cpp", work / "races", *SANITIZER)
    return all(succeeds(program, TSAN_OPTIONS="halt_on_error=1 exitcode=66") for _ in range(SANITIZED_RUNS))


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulation, compiled once for all mutants; where the compiler cannot use it, it reads the header again."""
    own = tmp_path_factory.mktemp("header") / "cuda_emulation.hpp"
    shutil.copy(EMULATION / own.name, own)
    compile_emulated(CSRC, own.name, own.with_suffix(".hpp.gch"), "-O0", "-x", "c++-header")
    return own


@pytest.fixture(scope="module")
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.mktemp("sanitizer")
    probe = work / "probe.cpp"
    probe.write_text("int main() { return 0; }")
    program = work / "probe"
    if not (succeeds(str(compiler()), "-fsanitize=thread", probe, "-o", program) and succeeds(program)):
        pytest.skip("ThreadSanitizer does not run here")


def test_the_source_as_it_is_passes(tmp_path: Path, header: Path, sanitizer: None) -> None:
    assert passes_battery(CSRC, header, tmp_path)
    assert passes_sanitizer(CSRC, tmp_path)


def survivors(mutants: list[dict[str, Any]], work: Path, passes: Callable[[Path, Path, str], bool]) -> list[str]:
    def survives(number: int) -> bool:
        mutant = mutants[number]
        own = work / str(number)
        csrc = own / "csrc"
        csrc.mkdir(parents=True)
        for source in CSRC.glob("*.cu*"):
            shutil.copy(source, csrc)
        text = (csrc / mutant["file"]).read_text()
        assert text.count(mutant["find"]) == 1, f"{mutant['name']}: found {text.count(mutant['find'])} times"
        (csrc / mutant["file"]).write_text(text.replace(mutant["find"], mutant["put"]))
        return passes(csrc, own, mutant["file"])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [m["name"] for m, alive in zip(mutants, pool.map(survives, range(len(mutants))), strict=True) if alive]


def test_every_fault_in_logic_is_found(tmp_path: Path, header: Path) -> None:
    mutants = [m for m in MUTANTS if m.get("by") != "races"]
    assert survivors(mutants, tmp_path, lambda csrc, work, file: passes_battery(csrc, header, work, file)) == []


def test_every_race_is_found(tmp_path: Path, sanitizer: None) -> None:
    mutants = [m for m in MUTANTS if m.get("by") == "races"]
    assert survivors(mutants, tmp_path, lambda csrc, work, _: passes_sanitizer(csrc, work)) == []
