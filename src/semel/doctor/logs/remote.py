"""Log folders in a bucket (s3://, gs://), listed by pyarrow; what is in them is read by `fetching`.

The address may carry pyarrow's own options, as the attempt log's does: s3://bucket/prefix?region=eu-west-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import LogFile, hidden, kind_of, reason
from semel.telemetry.logs import safe_text

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_WHY: Final = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "ACCESS_DENIED": "no permission to list it: the credentials in use need s3:ListBucket and s3:GetObject",
    "INVALID_ACCESS_KEY_ID": "these credentials are not known there",
    "NO_SUCH_KEY": "there is no such file",
    "Path does not exist": "there is no such file or folder",
    "NETWORK_CONNECTION": "it cannot be reached; check the endpoint and the network",
}


def files(address: str, mapped: bool) -> list[LogFile]:
    """All log files below an address; DoctorError, in one line, if it cannot be listed."""
    try:
        return list(_files(address, mapped))
    except (OSError, ValueError) as error:  # pyarrow's errors are of these two families
        raise DoctorError(f"--log {safe_text(address, 300)}: {why(error)}") from error


def why(error: Exception) -> str:
    text = str(error)
    return next((said for code, said in _WHY.items() if code in text), reason(error))


def _files(address: str, mapped: bool) -> Iterator[LogFile]:
    store, pattern = _split(address)
    system, root = _system(store)
    root = root.rstrip("/")
    top = system.get_file_info(root)
    if top.is_file:
        if (kind := kind_of(top.base_name, mapped=mapped, named=True)) is not None:
            yield LogFile(_address(address, root), kind, top.size, root, store)
        return
    for info in _inside(system, root):
        below = info.path[len(root) + 1 :]
        kind = kind_of(info.base_name, mapped=mapped)
        if kind is None or any(hidden(part) for part in below.split("/")) or not _matches(below, pattern):
            continue
        yield LogFile(_address(address, info.path), kind, info.size, info.path, store)


def _split(address: str) -> tuple[str, str]:
    """An address without its glob, and the glob: everything from the first part on that has a star in it."""
    place, mark, options = address.partition("?")
    if "*" not in place:
        return address, ""
    parts = place.split("/")
    first = next(number for number, part in enumerate(parts) if "*" in part)
    if first < 3:
        raise DoctorError(f"--log {address}: a bucket's name takes no star")
    return "/".join(parts[:first]) + mark + options, "/".join(parts[first:]).rstrip("/")


def _matches(below: str, pattern: str) -> bool:
    """Whether a file, or a folder that it is in, is what the glob stands for."""
    if not pattern:
        return True
    parts, wanted = below.split("/"), pattern.split("/")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted))


def _system(store: str) -> tuple[Any, str]:
    from pyarrow import fs

    system, root = fs.FileSystem.from_uri(store)
    return system, str(root)


def _inside(system: Any, root: str) -> list[FileInfo]:
    from pyarrow import fs

    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    return sorted((info for info in found if info.is_file), key=lambda info: info.path)


def _address(given: str, path: str) -> str:
    return re.sub(r"://.*", "", given) + "://" + path
