"""Bearer tokens and the tenants they belong to.

Tokens are kept and compared as SHA-256 digests, every comparison in constant time and over all of them, so neither a
memory dump nor a response time gives one away. A tenant is whom a token belongs to: a request cannot name another.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import yaml

from trtserve.api.errors import ApiError

log = logging.getLogger("trtserve.auth")

#: Seconds between looks at the tokens file.
RELOAD_INTERVAL = 1.0
MIN_TOKEN_LENGTH = 16


class AuthConfigError(Exception):
    """The tokens file cannot be used. The message names the file and what is wrong, never a token."""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def read_tokens(path: Path) -> dict[bytes, str]:
    """Token digest to tenant, from a YAML or JSON mapping of tenant to a token or a list of tokens.

    A token is visible ASCII without spaces, which is what a header can carry. Raises AuthConfigError: no such file, not
    a mapping, a name or token that is none, a tenant named twice, a token of two tenants, a file that others may write.
    A file that others may read, and a short token, are warned of.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise AuthConfigError(f"{path}: cannot be read: {e}") from e
    if mode & stat.S_IWOTH:
        raise AuthConfigError(f"{path}: anyone may write it; run: chmod 600 {path}")
    if mode & stat.S_IROTH:
        log.warning("%s: anyone on this machine may read the tokens; run: chmod 600 %s", path, path)
    try:
        # The base loader makes every scalar a string: a token of digits stays as it is written.
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise AuthConfigError(f"{path}{where}: is neither YAML nor JSON") from None
    except RecursionError:
        raise AuthConfigError(f"{path}: is nested too deeply; must map each tenant to its token") from None
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise AuthConfigError(f"{path}: must map each tenant to its token, one 'tenant: token' a line")
    tokens: dict[bytes, str] = {}
    names: set[str] = set()
    for key, value in root.value:
        where = f"{path}, line {key.start_mark.line + 1}"
        if not _is_text(key) or not key.value.isprintable():
            raise AuthConfigError(f"{where}: a tenant's name must be a non-empty string of printable characters")
        if key.value in names:
            raise AuthConfigError(f"{where}: tenant {key.value!r} is named twice; give it a list of tokens")
        names.add(key.value)
        for node in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not _is_text(node):
                raise AuthConfigError(f"{where}: tenant {key.value!r} needs a token or a list of tokens")
            if not all("!" <= char <= "~" for char in node.value):
                raise AuthConfigError(
                    f"{where}: tenant {key.value!r} has a token that no header can carry; allowed: visible ASCII "
                    "characters without spaces"
                )
            if len(node.value) < MIN_TOKEN_LENGTH:
                log.warning("%s: a token of under %d characters is easy to guess", where, MIN_TOKEN_LENGTH)
            if tokens.setdefault(_digest(node.value), key.value) != key.value:
                raise AuthConfigError(f"{where}: tenant {key.value!r} has a token that is another tenant's too")
    if not tokens:
        raise AuthConfigError(f"{path}: holds no token")
    return tokens


def _is_text(node: yaml.Node) -> bool:
    """Whether a node is non-empty text as it stands: no null, which would be a token anyone can guess, and no tag that
    asks for another reading."""
    return (
        isinstance(node, yaml.ScalarNode)
        and bool(node.value)
        and node.tag in ("", "tag:yaml.org,2002:str")
        and (node.style is not None or node.value.lower() not in ("null", "~"))
    )


class Authenticator(Protocol):
    """Turns an Authorization header into a tenant."""

    def authenticate(self, authorization: str | None) -> str:
        """The tenant. Raises ApiError 401."""
        ...

    def reload(self) -> None:
        """Read the tokens again, now."""
        ...


class OpenAccess:
    """No authentication: everyone is the one tenant ``""``, whatever key a client sends along."""

    def authenticate(self, authorization: str | None) -> str:
        return ""

    def reload(self) -> None:
        """Nothing to read."""


class TokenAuth:
    """Authentication by a tokens file, read again when it changes. A file that became unusable changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = self._file_stamp()
        self._tokens: Mapping[bytes, str] = read_tokens(path)
        self._checked = time.monotonic()

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            info = self._path.stat()
        except OSError:
            return None
        return (info.st_mtime_ns, info.st_size, info.st_ino)

    def reload(self) -> None:
        with self._lock:
            self._stamp = self._file_stamp()
            try:
                self._tokens = read_tokens(self._path)
            except AuthConfigError as e:
                log.error("the tokens read before stay valid: %s", e)
            else:
                log.info("%s: read again, %d tokens", self._path, len(self._tokens))

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if now - self._checked < RELOAD_INTERVAL:
            return
        self._checked = now
        if self._file_stamp() != self._stamp:
            self.reload()

    @property
    def tenants(self) -> frozenset[str]:
        """Who has a token now."""
        return frozenset(self._tokens.values())

    def authenticate(self, authorization: str | None) -> str:
        self._reload_if_changed()
        if not authorization:
            raise _unauthorized(
                "No API key was given; send the header 'Authorization: Bearer TOKEN'.", "missing_api_key"
            )
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("The Authorization header must read 'Bearer TOKEN'.", "invalid_api_key")
        presented = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        tenant: str | None = None
        for digest, owner in self._tokens.items():
            if hmac.compare_digest(digest, presented):
                tenant = owner
        if tenant is None:
            raise _unauthorized("The API key is not valid.", "invalid_api_key")
        return tenant


def _unauthorized(message: str, code: str) -> ApiError:
    challenge = 'Bearer realm="trtserve"' + (', error="invalid_token"' if code == "invalid_api_key" else "")
    return ApiError(401, message, type="authentication_error", code=code, headers={"WWW-Authenticate": challenge})
