"""Images for tests, and where a model was shown them."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import zlib
from typing import Any


def png(width: int = 2, height: int = 2, *, noise: bool = False) -> bytes:
    """Return a real image, red or of noise."""
    rows = b"".join(b"\0" + (os.urandom(3 * width) if noise else b"\xff\0\0" * width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def shown(body: dict[str, Any]) -> list[str]:
    """Return the digests of the images in a request of either API, in order."""
    return [hashlib.sha256(base64.b64decode(data)).hexdigest() for data in _encoded(body.get("messages") or body.get("input") or [])]


def digest(data: bytes) -> str:
    """Return the digest that `shown` gives of an image that came unchanged."""
    return hashlib.sha256(data).hexdigest()


def _encoded(tree: Any) -> list[str]:
    if isinstance(tree, list):
        return [found for item in tree for found in _encoded(item)]
    if not isinstance(tree, dict):
        return []
    if tree.get("type") == "image":
        return [tree["source"]["data"]]
    if tree.get("type") == "input_image":
        return [tree["image_url"].partition(",")[2]]
    return _encoded(tree.get("content") or [])
