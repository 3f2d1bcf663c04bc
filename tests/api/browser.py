"""A headless Chromium, driven over its debugging pipe: no driver, no port, no fixed waits."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One browser with one page. The browser reads commands from its descriptor 3 and answers on 4."""

    def __init__(self, profile: Path, *flags: str) -> None:
        assert BROWSER is not None
        read_commands, self._to = os.pipe()
        self._from, write_answers = os.pipe()
        command = [BROWSER, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]
        command += [f"--user-data-dir={profile}", *flags, "about:blank"]

        # The shell gives both ends the numbers that Chromium expects.
        script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer = b""
        self._id = 0
        pages = self._call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in pages if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._id:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> bytes:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], 60)
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser has gone"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return message

    def open(self, url: str) -> None:
        self._call("Page.navigate", self._session, url=url)

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression."""
        result = self._call("Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout: float = 60) -> Any:
        """The expression's value, once it is true."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)
        return value

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", self._session)["data"]))
