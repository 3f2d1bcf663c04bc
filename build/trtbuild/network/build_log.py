"""TensorRT's log and progress during a build: errors kept, activation figures read, steps shown."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from trtbuild.network.trt_types import TensorRT

_ACTIVATION = re.compile(r"Total Activation Memory: (\d+) bytes")
#: What a build says at ERROR level on a machine without a CUDA driver, though nothing is wrong with the plan.
_NO_DRIVER = re.compile(r"cudaError 35\b|cudaErrorInsufficientDriver")


class BuildLog:
    """What a build logged, through the logger that ``logger_for`` makes of it."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.activation_bytes: list[int] = []
        """Each profile's, in order."""

    def take(self, severity: str, message: str) -> None:
        """One line of the log; ``severity`` is the member's name."""
        if severity in ("ERROR", "INTERNAL_ERROR") and not _NO_DRIVER.search(message):
            self.errors.append(message)
        elif found := _ACTIVATION.search(message):
            self.activation_bytes.append(int(found[1]))


def logger_for(trt: TensorRT, take: Callable[[str, str], None]) -> Any:
    """A ``trt.ILogger`` that hands each line's severity (the member's name) and text to ``take``."""
    return _classes(trt)[0](take)


class StepFraction:
    """Turns nested phases of known step counts into one growing share of the whole, 0 to 1."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._phases: dict[str, tuple[str | None, int, int]] = {}
        self._highest = 0.0

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """``phase`` begins, of ``steps`` steps, inside the running step of ``parent``."""
        self._phases[phase] = (parent, max(steps, 1), 0)

    def step(self, phase: str, index: int) -> None:
        """Step ``index`` of ``phase`` is done."""
        if phase in self._phases:
            parent, steps, _ = self._phases[phase]
            self._phases[phase] = (parent, steps, min(index + 1, steps))
            self._tell(phase)

    def finish(self, phase: str) -> None:
        if phase in self._phases:
            parent, steps, _ = self._phases[phase]
            self._phases[phase] = (parent, steps, steps)
            self._tell(phase)
            del self._phases[phase]

    def _tell(self, phase: str) -> None:
        share, name = 0.0, phase
        current: str | None = name
        while current is not None and current in self._phases:
            parent, steps, done = self._phases[current]
            # A finished child lies within its parent's running step, which is not counted as done yet.
            share = min((done + share) / steps, 1.0)
            current = parent
        if share > self._highest:
            self._highest = share
            self._report(share)


def progress_monitor(trt: TensorRT, report: Callable[[float], None]) -> Any:
    """A ``trt.IProgressMonitor`` that reports the share of the build that is done, 0 to 1, as it grows."""
    return _classes(trt)[1](StepFraction(report))


@functools.cache
def _classes(trt: TensorRT) -> tuple[Any, Any]:
    """The logger's and the monitor's class. Made once a module and kept: the bindings do not expect a subclass to be
    collected together with its instances."""

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self, take: Callable[[str, str], None]) -> None:
            super().__init__()
            self._take = take

        def log(self, severity: Any, msg: str) -> None:
            self._take(severity.name, msg)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self, fraction: StepFraction) -> None:
            super().__init__()
            self._fraction = fraction

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._fraction.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._fraction.step(phase_name, step)
            return True  # go on

        def phase_finish(self, phase_name: str) -> None:
            self._fraction.finish(phase_name)

    return Logger, Monitor
