"""The MD5 digests that SQS sends and its clients check."""

from base64 import b64decode
from collections.abc import Mapping
from hashlib import md5
from struct import Struct
from typing import Any

_length = Struct(">I").pack
_STRING, _BINARY = b"\x01", b"\x02"


def md5_of_body(body: str) -> str:
    # surrogatepass: a lone surrogate is refused by the rules later on, never by a crash here.
    return md5(body.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of message attributes in their JSON form (binary values in base64), as every SDK computes it."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        binary = "BinaryValue" in value
        data = b64decode(value["BinaryValue"]) if binary else value["StringValue"].encode()
        for part in (name.encode(), value["DataType"].encode()):
            digest.update(_length(len(part)))
            digest.update(part)
        digest.update(_BINARY if binary else _STRING)
        digest.update(_length(len(data)))
        digest.update(data)
    return digest.hexdigest()
