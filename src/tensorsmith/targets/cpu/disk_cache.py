"""Compiled objects on disk, safe against crashes, other processes and other users.

One file an entry::

    magic (8 bytes) | payload length (8 bytes, little endian) | BLAKE2b-256 of the payload (32 bytes) | payload

An entry is written to a temporary file in the same folder and renamed over its final name, so a reader sees a whole
entry or none; whatever does not match its header is removed and built again.  The folder is
``TENSORSMITH_CACHE``, else ``XDG_CACHE_HOME/tensorsmith``, else ``~/.cache/tensorsmith``; entries live in its
sub-folder ``objects`` (mode 0700).  Since the entries are machine code, a folder that another user owns is refused.
Without a usable folder everything still works, only nothing is remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

_MAGIC = b"TSOBJ\x01\r\n"
_HEADER = len(_MAGIC) + 8 + 32
_SUFFIX = ".object"
_TEMPORARY_SUFFIX = ".partial"
_STALE_SECONDS = 3600.0  # a temporary file older than this belongs to a process that died
_TOUCH_SECONDS = 3600.0  # an entry's time stamp is renewed at most this often
_STORES_BETWEEN_SWEEPS = 256
DEFAULT_CAPACITY = 512 << 20


class DiskCache:
    """A folder of entries, least recently used ones evicted above ``capacity`` bytes.

    Attributes:
        folder: where entries live, or None if no folder is usable.
        reason: why there is no folder ('' if there is one).
    """

    def __init__(self, root: str | os.PathLike[str] | None, capacity: int = DEFAULT_CAPACITY, reason: str = "") -> None:
        self.folder: Path | None = None
        self.reason = reason
        self.capacity = capacity
        self._stores = 0
        if root is None:
            self.reason = reason or "no cache folder is known (no home)"
            return
        folder = Path(root) / "objects"
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self.reason = f"{folder} cannot be made: {error.strerror or error}"
            return
        try:
            self.reason = _refusal(folder)
        except OSError as error:
            self.reason = f"{folder} cannot be examined: {error.strerror or error}"
        if self.reason:
            warnings.warn(f"compiled kernels are not kept on disk: {self.reason}", RuntimeWarning, stacklevel=2)
        else:
            self.folder = folder

    def path(self, key: str) -> Path | None:
        """The file of ``key`` (it may not exist), or None without a folder."""
        return None if self.folder is None else self.folder / (key + _SUFFIX)

    def load(self, key: str) -> bytes | None:
        """The payload stored under ``key``, or None; a damaged entry is removed."""
        path = self.path(key)
        if path is None:
            return None
        try:
            with open(path, "rb") as file:
                entry = file.read()
                age = time.time() - os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        payload = _unpack(entry)
        with contextlib.suppress(OSError):
            if payload is None:
                path.unlink()
            elif age > _TOUCH_SECONDS:
                os.utime(path)
        return payload

    def discard(self, key: str) -> None:
        """Forget ``key`` (an entry that is whole but that the linker rejects)."""
        path = self.path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def store(self, key: str, payload: bytes) -> bool:
        """Write ``payload`` under ``key``; False if the folder is missing, read-only or full (never an error)."""
        path = self.path(key)
        if path is None or self.folder is None:
            return False
        if self._stores % _STORES_BETWEEN_SWEEPS == 0:
            self.sweep()
        self._stores += 1
        temporary = None
        try:
            # mkstemp makes the file with mode 0600 under a name no other process has.
            descriptor, temporary = tempfile.mkstemp(_TEMPORARY_SUFFIX, key[:16] + ".", self.folder)
            with open(descriptor, "wb") as file:
                file.write(_pack(payload))
            os.replace(temporary, path)
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            return False
        return True

    def sweep(self) -> None:
        """Remove dead processes' temporary files; above capacity, the least recently used entries down to 80 %."""
        if self.folder is None:
            return
        now, total = time.time(), 0
        entries: list[tuple[float, int, str]] = []
        try:
            with os.scandir(self.folder) as listing:
                for item in listing:
                    with contextlib.suppress(OSError):
                        status = item.stat(follow_symlinks=False)
                        if item.name.endswith(_TEMPORARY_SUFFIX) and now - status.st_mtime > _STALE_SECONDS:
                            os.unlink(item.path)
                        elif item.name.endswith(_SUFFIX):
                            entries.append((status.st_mtime, status.st_size, item.path))
                            total += status.st_size
        except OSError:
            return
        if total <= self.capacity:
            return
        for _, size, path in sorted(entries):
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
            if total <= self.capacity * 4 // 5:
                break


def default_root() -> tuple[str | None, str]:
    """The cache folder that the environment asks for, or None and the reason."""
    named = os.environ.get("TENSORSMITH_CACHE")
    if named is not None:
        if named.strip().lower() in ("", "0", "off"):
            return None, "switched off by TENSORSMITH_CACHE"
        return os.path.abspath(os.path.expanduser(named)), ""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rules say that a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return None, "no cache folder is known (no home)"
    return os.path.join(base, "tensorsmith"), ""


def open_default() -> DiskCache:
    """The cache that the environment names; ``TENSORSMITH_CACHE_BYTES`` overrides its capacity."""
    root, reason = default_root()
    text = os.environ.get("TENSORSMITH_CACHE_BYTES", "")
    try:
        capacity = int(text) if text else DEFAULT_CAPACITY
    except ValueError:
        raise ValueError(f"TENSORSMITH_CACHE_BYTES={text!r} is not a number of bytes") from None
    return DiskCache(root, capacity, reason)


def _pack(payload: bytes) -> bytes:
    digest = hashlib.blake2b(payload, digest_size=32).digest()
    return _MAGIC + len(payload).to_bytes(8, "little") + digest + payload


def _unpack(entry: bytes) -> bytes | None:
    if len(entry) < _HEADER or entry[: len(_MAGIC)] != _MAGIC:
        return None
    length = int.from_bytes(entry[len(_MAGIC) : len(_MAGIC) + 8], "little")
    payload = entry[_HEADER:]
    if len(payload) != length or hashlib.blake2b(payload, digest_size=32).digest() != entry[_HEADER - 32 : _HEADER]:
        return None
    return payload


def _refusal(folder: Path) -> str:
    """Why the folder must not be trusted, '' if it may; loose permissions of our own folder are tightened."""
    if not hasattr(os, "geteuid"):  # Windows: the profile folder's access list does this job
        return ""
    for place in (folder.parent, folder):
        status = place.stat()
        if status.st_uid != os.geteuid():
            return f"{place} belongs to another user"
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX and place != folder:
            return f"{place} can be changed by every user"
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError:
            return f"{folder} is open to other users (mode {mode:o})"
    return ""
