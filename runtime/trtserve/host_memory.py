"""How much memory a process may still take on this machine."""

from __future__ import annotations

from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes a new allocation may use: what the kernel says is available, within the control group's limit.

    None where the system does not say. ``root`` stands in for ``/`` in tests.
    """
    free = _meminfo(root)
    limits = [x for x in (free, _cgroup_v2(root), _cgroup_v1(root)) if x is not None]
    return max(min(limits), 0) if limits else None


def _meminfo(root: Path) -> int | None:
    text = _read(root / "proc/meminfo")
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_v2(root: Path) -> int | None:
    """Room left in this process's group and the groups around it; page cache that can be dropped is room."""
    rooms = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            group = Path(line[3:].strip().lstrip("/"))
            for part in (group, *group.parents):
                where = root / "sys/fs/cgroup" / part
                limit, used = _number(where / "memory.max"), _number(where / "memory.current")
                if limit is not None and used is not None:
                    rooms.append(limit - used + _stat(where / "memory.stat", "inactive_file"))
    return min(rooms, default=None)


def _cgroup_v1(root: Path) -> int | None:
    where = root / "sys/fs/cgroup/memory"
    limit, used = _number(where / "memory.limit_in_bytes"), _number(where / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= 1 << 62:  # the old interface's way to say unlimited
        return None
    return limit - used + _stat(where / "memory.stat", "total_inactive_file")


def _stat(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
