"""Ends a model's process with its server's: one that was killed leaves its models running, with their memory.

A shell watches, since nothing inside the process can be relied on to: a call into Triton waits for the server's answer,
up to Triton 2.51 with the interpreter's lock, and where the server was killed meanwhile it waits for ever.
"""

from __future__ import annotations

import logging
import os
import subprocess

log = logging.getLogger("trtserve.triton")

#: With the server's id and the model's: until the model's process is gone, or its parent is another. A server that was
#: killed may stay as a zombie for long, but no process has a zombie for its parent.
_WATCH = """
while read -r status < "/proc/$2/stat"; do
  rest=${status##*) }; rest=${rest#? }
  [ "${rest%% *}" = "$1" ] || { kill -9 "$2"; exit; }
  sleep 1
done
"""


def end_with(server: int) -> None:
    """See to it that this process is killed within a second or so of the end of ``server``, its parent process."""
    nothing = subprocess.DEVNULL
    try:
        subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "trtserve-guard", str(server), str(os.getpid())],
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
    except OSError as e:
        log.warning("no guard: this process stays should the server be killed: %s", e)
