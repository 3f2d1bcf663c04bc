"""A real Triton server from the bundle of ``nvidia-pytriton``: started on free loopback ports, stopped without a trace.

The bundle's server starts on any model repository. What it needs beside that: a folder of backends in which the
Python stub lies next to the backend's library, the environment's ``python3`` first on PATH (the stub finds its packages
through it), and the library path of that interpreter and of the bundle's own libraries.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

EXIT_TIMEOUT = 5
START_TIMEOUT = 120.0
_PR_SET_PDEATHSIG = 1


class ServerStartError(RuntimeError):
    """The server ended, or did not get ready, with its log."""


@dataclass(frozen=True)
class Bundle:
    """Where an environment that has ``nvidia-pytriton`` keeps the server's parts."""

    python: Path
    site_packages: Path
    library_path: str
    stub: Path

    @classmethod
    def of(cls, python: Path) -> Bundle:
        """Ask the environment's interpreter. Raises CalledProcessError when it lacks the package."""
        script = (
            "import json, pathlib, sys, sysconfig, numpy, pytriton;"
            "print(json.dumps([str(pathlib.Path(pytriton.__file__).parent.parent), sysconfig.get_config_var('LIBDIR'),"
            " '%d.%d' % sys.version_info[:2]]))"
        )
        found = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
        site, libdir, version = json.loads(found.stdout)
        packages = Path(site)
        stub = packages / "pytriton/tritonserver/python_backend_stubs" / version / "triton_python_backend_stub"
        return cls(python, packages, f"{libdir}:{packages / 'nvidia_pytriton.libs'}", stub)

    @property
    def server(self) -> Path:
        return self.site_packages / "pytriton/tritonserver"

    def link_backends(self, directory: Path) -> Path:
        """A backends folder with the stub where the server looks for it."""
        python = directory / "python"
        python.mkdir(parents=True)
        for part in (self.server / "backends/python").iterdir():
            (python / part.name).symlink_to(part)
        stub = python / "triton_python_backend_stub"
        if not stub.exists():
            stub.symlink_to(self.stub)
        return directory


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class TritonServer:
    """A running server. Use it as a context; nothing of it is left afterwards."""

    bundle: Bundle
    repository: Path
    scratch: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TritonServer:
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self._region = f"trtlookup{secrets.token_hex(4)}"
        server = self.bundle.server
        command = [
            str(server / "bin/tritonserver"),
            f"--model-repository={self.repository}",
            f"--backend-directory={self.bundle.link_backends(self.scratch / 'backends')}",
            f"--cache-directory={server / 'caches'}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            "--allow-gpu-metrics=false",
            f"--exit-timeout-secs={EXIT_TIMEOUT}",
            f"--backend-config=python,shm-region-prefix-name={self._region}",
            *self.options,
        ]
        env = {
            **os.environ,
            **self.environment,
            "PATH": f"{self.bundle.python.parent}:{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": self.bundle.library_path,
        }
        env.pop("PYTHONPATH", None)
        with (self.scratch / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True, preexec_fn=_die_with_parent
            )
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def log(self) -> str:
        return (self.scratch / "server.log").read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def metrics(self) -> str:
        """Triton's metrics page."""
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10, verify=False).text

    def stubs(self) -> dict[int, str]:
        """The model processes by their id: children of the server that run the Python stub."""
        assert self.process is not None
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().rpartition(")")
                if int(rest.split()[1]) == self.process.pid:
                    found[int(stat.parent.name)] = name.partition("(")[2]
        return found

    def regions(self) -> list[str]:
        """This server's shared memory regions."""
        return sorted(p.name for p in Path("/dev/shm").glob(f"{self._region}*"))

    def _await_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerStartError(f"the server ended with {self.process.returncode}:\n{self.log}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/v2/health/ready", timeout=2, verify=False).status_code == 200:
                    return
            time.sleep(0.1)
        raise ServerStartError(f"the server was not ready after {START_TIMEOUT:.0f} s:\n{self.log}")

    def __exit__(self, *_: Any) -> None:
        # The exit code says nothing: after concurrent streams a clean stop can end with "Exit timeout expired".
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_TIMEOUT + 5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        for region in self.regions():
            (Path("/dev/shm") / region).unlink(missing_ok=True)
