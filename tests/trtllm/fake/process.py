"""The worker in a process of its own, as TensorRT-LLM runs it: what it is given arrives by pickle, and nothing else."""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any

from . import pytorch

Respond = Callable[[int, dict[str, Any]], None]


def _main(line: str, payload: bytes, inbox: Any, outbox: Any) -> None:
    from . import installed

    with installed(line):
        worker = pytorch.Worker(pickle.loads(payload), lambda client, response: outbox.put((client, response)))
        while True:
            command, value = pickle.loads(inbox.get())
            if command == "close":
                worker.shutdown()
                outbox.put(None)
                return
            getattr(worker, command)(value)


class ProcessWorker:
    """A worker's face on the serving side."""

    def __init__(self, line: str, arguments: dict[str, Any], respond: Respond) -> None:
        context = multiprocessing.get_context("spawn")
        self._inbox, self._outbox = context.Queue(), context.Queue()
        payload = pickle.dumps(arguments)
        self.process = context.Process(target=_main, args=(line, payload, self._inbox, self._outbox), daemon=True)
        self.process.start()
        self._clients: list[int] = []
        self._reader = threading.Thread(target=self._read, args=(respond,), daemon=True)
        self._reader.start()

    def submit(self, item: dict[str, Any]) -> None:
        self._clients.append(item["client_id"])
        self._inbox.put(pickle.dumps(("submit", item)))

    def cancel(self, client: int) -> None:
        self._inbox.put(pickle.dumps(("cancel", client)))

    def shutdown(self) -> None:
        self._inbox.put(pickle.dumps(("close", None)))
        self._reader.join(60)
        self.process.join(60)
        assert self.process.exitcode == 0

    def _read(self, respond: Respond) -> None:
        while True:
            try:
                message = self._outbox.get(timeout=0.5)
            except queue.Empty:
                if self.process.is_alive():
                    continue
                for client in self._clients:
                    respond(client, {"error": f"the worker exited with {self.process.exitcode}"})
                return
            if message is None:
                return
            respond(*message)
