"""What may be shown to the model beside the prompt: is it what it says, and how large may it be? Caller's thread; reads files.

A file is read once, when its turn is prepared; from then on only its content counts, on the wire, in the journal, and for whether two
requests are the same. An image is known by its first bytes, never by the name of its file. The bounds are below what either provider
takes (5 MB is what the Messages API takes of an image; Codex repeats its input in two lines, and shows it again with every resume).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import attrs

from greenroom.errors import AttachmentError
from greenroom.model import Attachment, ImageAttachment, TextAttachment, TurnRequest

__all__ = ["Attachment", "ImageAttachment", "TextAttachment", "as_text", "attachment_from", "load", "without_content"]

MAX_ATTACHMENTS = 20
MAX_IMAGE_BYTES = 5 * 1024 * 1024
MAX_TEXT_BYTES = 1024 * 1024
MAX_TOTAL_BYTES = 10 * 1024 * 1024
"""Of all attachments of a turn together."""

_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"))
_KINDS = "PNG, JPEG, GIF and WebP"


def load(request: TurnRequest) -> TurnRequest:
    """Return the request with the content of its attachments in place of paths. Raises AttachmentError."""
    if not request.attachments:
        return request
    if len(request.attachments) > MAX_ATTACHMENTS:
        beyond = request.attachments[MAX_ATTACHMENTS]
        raise AttachmentError(
            _name(beyond), f"is one too many: {len(request.attachments)} are given, at most {MAX_ATTACHMENTS} are possible"
        )
    loaded = tuple(_loaded(attachment) for attachment in request.attachments)
    _check_total(loaded)
    return attrs.evolve(request, attachments=loaded)


def without_content(request: TurnRequest) -> TurnRequest:
    """Return the request as far as decisions rest on it: what was attached is for the provider alone."""
    return attrs.evolve(request, attachments=()) if request.attachments else request


def attachment_from(path: Path | str) -> Attachment:
    """Return what the file at `path` is, loaded: an image, by its first bytes, or else a text. Raises AttachmentError."""
    data = _read(Path(path), MAX_IMAGE_BYTES)
    if kind_of(data) is not None:
        return _image(str(path), data, None)
    return _text(Path(path).name, data)


def as_text(attachment: TextAttachment) -> str:
    """Return what the model is shown of a text."""
    name = (attachment.name or "").replace("&", "&amp;").replace('"', "&quot;")
    text = attachment.text or ""
    return f'<attachment name="{name}">\n{text}{"" if text.endswith(chr(10)) else chr(10)}</attachment>\n'


def images_of(request: TurnRequest) -> list[tuple[str, bytes]]:
    """Return the media type and the bytes of each image, in order; the request is a loaded one."""
    images = [attachment for attachment in request.attachments if isinstance(attachment, ImageAttachment)]
    return [(image.media_type or "", image.data or b"") for image in images]


def texts_of(request: TurnRequest) -> list[str]:
    """Return what the model is shown of each text, in order."""
    return [as_text(attachment) for attachment in request.attachments if isinstance(attachment, TextAttachment)]


def kind_of(data: bytes) -> str | None:
    """Return the media type of an image by its first bytes; None: it is none that the providers take."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), None)


def _name(attachment: Attachment) -> str:
    if attachment.path is not None:
        return str(attachment.path)
    return attachment.name or "text" if isinstance(attachment, TextAttachment) else "image"


def _loaded(attachment: Attachment) -> Attachment:
    name = _name(attachment)
    if isinstance(attachment, ImageAttachment):
        data = attachment.data if attachment.path is None else _read(attachment.path, MAX_IMAGE_BYTES)
        return _image(name, data or b"", attachment.media_type)
    if attachment.path is not None:
        return _text(attachment.name or attachment.path.name, _read(attachment.path, MAX_TEXT_BYTES), shown_as=name)
    return _checked_text(attachment.name or "", attachment.text or "", shown_as=name)


def _image(name: str, data: bytes, declared: str | None) -> ImageAttachment:
    kind = kind_of(data)
    if kind is None:
        raise AttachmentError(name, "is not an image" if data else "is empty", hint=f"images are {_KINDS}; give a text as a TextAttachment")
    if declared not in (None, kind):
        raise AttachmentError(name, f"is of type {kind}, not {declared}")
    if len(data) > MAX_IMAGE_BYTES:
        raise _too_large(name, len(data), MAX_IMAGE_BYTES)
    return ImageAttachment(data=data, media_type=kind)


def _text(name: str, data: bytes, *, shown_as: str = "") -> TextAttachment:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttachmentError(shown_as or name, "is neither an image nor UTF-8 text" if not shown_as else "is not UTF-8 text") from error
    return _checked_text(name, text, shown_as=shown_as or name)


def _checked_text(name: str, text: str, *, shown_as: str) -> TextAttachment:
    if "\0" in text:
        raise AttachmentError(shown_as, "is not a text: it holds a NUL character")
    if not name.strip() or not name.isprintable():
        raise AttachmentError(shown_as, "has a name that cannot be shown")
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise _too_large(shown_as, size, MAX_TEXT_BYTES)
    return TextAttachment(text=text, name=name)


def _check_total(attachments: Iterable[Attachment]) -> None:
    total = 0
    for attachment in attachments:
        content = attachment.data if isinstance(attachment, ImageAttachment) else (attachment.text or "").encode(errors="surrogatepass")
        total += len(content or b"")
        if total > MAX_TOTAL_BYTES:
            raise AttachmentError(
                _name(attachment), f"is beyond the {MAX_TOTAL_BYTES} bytes that all attachments of a turn may have together"
            )


def _too_large(name: str, size: int, most: int) -> AttachmentError:
    return AttachmentError(name, f"has {size} bytes; at most {most} are possible")


def _read(path: Path, most: int) -> bytes:
    """Return the content of a plain file, never more than a little beyond what is possible. Waits for no pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(path, error) from error
    try:
        return _read_plain(path, fd, most)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(fd)


def _read_plain(path: Path, fd: int, most: int) -> bytes:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise AttachmentError(str(path), "is a directory" if stat.S_ISDIR(found.st_mode) else "is not a plain file")
    data = b""
    while len(data) <= most and (more := os.read(fd, most + 1 - len(data))):
        data += more
    if len(data) > most:
        raise _too_large(str(path), max(found.st_size, len(data)), most)
    return data


def _unreadable(path: Path, error: OSError | ValueError) -> AttachmentError:
    why = error.strerror if isinstance(error, OSError) else None
    return AttachmentError(str(path), f"cannot be read: {why or error}")
