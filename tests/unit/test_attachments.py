"""What may be attached to a prompt: by content, never by name; read once; within bounds; the same on record and on the wire."""

from __future__ import annotations

import base64
import json
import os
import pickle

import pytest

from greenroom import (
    Agent,
    ApprovalPolicy,
    AttachmentError,
    GreenroomError,
    ImageAttachment,
    InteractionMode,
    NativePermissions,
    ProviderCapabilityError,
    TextAttachment,
    TurnRequest,
    attachments,
)
from greenroom.attachments import MAX_ATTACHMENTS, MAX_IMAGE_BYTES, MAX_TEXT_BYTES, MAX_TOTAL_BYTES, attachment_from, load
from greenroom.journal import STANDARD
from greenroom.policy.commands import How
from greenroom.testing import FakeTransport, fake_profile
from greenroom.transports.claude import lines
from greenroom.transports.codex import params

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
JPEG, GIF, WEBP = b"\xff\xd8\xff\xe0" + b"\0" * 9, b"GIF89a" + b"\0" * 9, b"RIFF\x10\0\0\0WEBPVP8 "
IMAGES = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}


def asked(*attached, prompt="look", **fields):
    return TurnRequest(prompt, attachments=attached, **fields)


def refused(*attached):
    with pytest.raises(AttachmentError) as caught:
        load(asked(*attached))
    return str(caught.value)


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_known_by_its_first_bytes_not_by_its_name(tmp_path, kind):
    path = tmp_path / "picture.txt"
    path.write_bytes(IMAGES[kind])
    (image,) = load(asked(ImageAttachment(path=path))).attachments
    assert image == ImageAttachment(data=IMAGES[kind], media_type=kind)
    assert attachment_from(path) == image


def test_a_file_is_read_once(tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    request = load(asked(ImageAttachment(path=path)))
    path.write_bytes(GIF)
    assert request.attachments[0].data == PNG
    path.unlink()
    assert load(request) == request


def test_the_same_content_is_the_same_request_wherever_it_lay(tmp_path):
    here, there = tmp_path / "a.png", tmp_path / "b.png"
    here.write_bytes(PNG)
    there.write_bytes(PNG)
    prints = [STANDARD.fingerprint(load(asked(given))) for given in (ImageAttachment(path=here), ImageAttachment(path=there))]
    prints.append(STANDARD.fingerprint(load(asked(ImageAttachment(data=bytearray(PNG))))))
    assert len(set(prints)) == 1
    there.write_bytes(PNG + b"\0")
    assert STANDARD.fingerprint(load(asked(ImageAttachment(path=there)))) != prints[0]


def test_a_text_has_its_files_name_and_no_byte_order_mark(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes("\ufeffgrüße\n".encode())
    (text,) = load(asked(TextAttachment(path=path))).attachments
    assert text == TextAttachment(text="grüße\n", name="notes.md") == attachment_from(path)
    assert load(asked(TextAttachment(path=path, name="other"))).attachments[0].name == "other"
    assert attachments.as_text(TextAttachment(text="x", name='a"b')) == '<attachment name="a&quot;b">\nx\n</attachment>\n'


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"%PDF-1.7", "is not an image"), (b"", "is empty"), (b"<svg/>", "is not an image"), (PNG[:7], "is not an image")],
)
def test_what_is_no_image_is_refused(tmp_path, content, why):
    path = tmp_path / "p.png"
    path.write_bytes(content)
    assert refused(ImageAttachment(path=path)) == f"attachment {str(path)!r} {why}"
    assert refused(ImageAttachment(data=content)) == f"attachment 'image' {why}"


def test_an_image_of_another_kind_than_declared_is_refused():
    assert refused(ImageAttachment(data=GIF, media_type="image/png")) == "attachment 'image' is of type image/gif, not image/png"


def test_too_large(tmp_path):
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.write(PNG)
        file.truncate(10**12)  # sparse: read whole, it would fill the memory
    assert refused(ImageAttachment(path=path)) == f"attachment {str(path)!r} has {10**12} bytes; at most {MAX_IMAGE_BYTES} are possible"
    assert f"at most {MAX_TEXT_BYTES}" in refused(TextAttachment(path=path))
    assert f"has {MAX_TEXT_BYTES + 1} bytes" in refused(TextAttachment(text="x" * (MAX_TEXT_BYTES + 1), name="n"))
    whole = PNG + b"\0" * (MAX_IMAGE_BYTES - len(PNG))
    load(asked(ImageAttachment(data=whole)))
    assert f"has {MAX_IMAGE_BYTES + 1} bytes" in refused(ImageAttachment(data=whole + b"\0"))
    assert f"beyond the {MAX_TOTAL_BYTES} bytes" in refused(*[ImageAttachment(data=whole)] * 3)
    assert f"{MAX_ATTACHMENTS + 1} are given" in refused(*[ImageAttachment(data=PNG)] * (MAX_ATTACHMENTS + 1))


def test_what_is_no_plain_file_is_refused_and_nobody_waits(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for kind in (ImageAttachment, TextAttachment):
        assert "cannot be read: No such file" in refused(kind(path=tmp_path / "none.png"))
        assert refused(kind(path=tmp_path)).endswith("is a directory")
        assert refused(kind(path=tmp_path / "pipe")).endswith("is not a plain file")
        assert "cannot be read" in refused(kind(path="a\0b"))
    assert refused(TextAttachment(text="a\0b", name="n")).endswith("holds a NUL character")
    assert refused(TextAttachment(text="x", name="a\nb")).endswith("a name that cannot be shown")
    (tmp_path / "latin").write_bytes("grüße".encode("latin-1"))
    assert refused(TextAttachment(path=tmp_path / "latin")).endswith("is not UTF-8 text")
    with pytest.raises(AttachmentError, match="neither an image nor UTF-8 text"):
        attachment_from(tmp_path / "latin")


def test_the_values_say_what_they_need():
    for wrong in (ImageAttachment, lambda: ImageAttachment(path="p", data=b""), lambda: TextAttachment(text="without a name")):
        with pytest.raises(ValueError, match=r"give either|needs a name"):
            wrong()
    with pytest.raises(TypeError, match="data must be bytes, got str"):
        ImageAttachment(data="x")
    with pytest.raises(TypeError, match="attachments must be"):
        TurnRequest("x", attachments=["p.png"])
    with pytest.raises(TypeError, match="interaction_mode must be"):
        TurnRequest("x", interaction_mode="plan")
    with pytest.raises(ValueError, match="model must be a name"):
        TurnRequest("x", model=" ")
    assert "PNG" not in repr(ImageAttachment(data=PNG))


def test_the_error_is_of_our_tree_and_travels():
    error = pickle.loads(pickle.dumps(AttachmentError("p.png", "is empty", hint="h")))  # noqa: S301 - our own
    assert isinstance(error, GreenroomError)
    assert isinstance(error, ValueError)
    assert (error.name, error.hint) == ("p.png", "h")


# --- on the wire


ALL = asked(
    ImageAttachment(data=PNG, media_type="image/png"), TextAttachment(text="t", name="n"), ImageAttachment(data=GIF, media_type="image/gif")
)


def test_what_claude_is_sent():
    content = lines.content_of(How.PROMPT, ALL)
    assert [block["type"] for block in content] == ["image", "image", "text", "text"]
    assert content[0]["source"] == {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    assert [block["text"] for block in content[2:]] == ['<attachment name="n">\nt\n</attachment>\n', "look"]
    assert lines.content_of(How.RETRY, ALL) == [{"type": "text", "text": ""}]
    assert lines.content_of(How.CONTINUE, ALL) == lines.CONTINUE_TEXT


def test_a_prompt_with_an_image_is_no_command_of_the_cli():
    content = lines.content_of(How.PROMPT, asked(ImageAttachment(data=PNG, media_type="image/png"), prompt="/clear"))
    assert [block.get("text") for block in content] == [None, "/clear", " "]


def test_the_bound_of_a_line_counts_what_is_attached():
    image = ImageAttachment(data=b"\0" * 9, media_type="image/png")
    assert lines.request_too_long(asked(image)) is None
    huge = asked(image, prompt="x" * (lines.MAX_TEXT_BYTES - 20))
    assert lines.request_too_long(huge) is None
    assert lines.request_too_long(asked(image, image, prompt=huge.prompt)) > lines.MAX_TEXT_BYTES


def test_what_codex_is_sent():
    image, other, text, prompt = params.request_input(ALL)
    assert image == {"type": "image", "url": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    assert other["url"].startswith("data:image/gif;")
    assert text["text"] + prompt["text"] == params.said_by(ALL)
    assert prompt == {"type": "text", "text": "look"}


# --- at the front door


class Seeing(FakeTransport):
    """A transport of a user's that takes attachments."""

    profile = fake_profile(attachments=True)


def fake_session(transport, cwd):
    return Agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY).session(cwd)


def test_a_transport_that_does_not_declare_it_is_not_asked(tmp_path):
    with fake_session(FakeTransport(), tmp_path) as session:
        for request, why in (
            (asked(ImageAttachment(data=PNG)), "it takes no attachments"),
            (TurnRequest("x", model="m"), "it takes no model for a single turn"),
            (TurnRequest("x", interaction_mode=InteractionMode.PLAN), "it has no plan mode"),
        ):
            with pytest.raises(ProviderCapabilityError, match=why):
                session.prepare_turn(request)
        assert session.state == "idle"


def test_a_transport_that_declares_it_gets_the_content(tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    transport = Seeing()
    with fake_session(transport, tmp_path) as session:
        ticket = session.prepare_turn(asked(ImageAttachment(path=path)))
        path.unlink()
        session.run(ticket)
        assert transport.requests[-1].attachments == (ImageAttachment(data=PNG, media_type="image/png"),)
        with pytest.raises(AttachmentError, match="cannot be read"):
            session.prepare_turn(asked(ImageAttachment(path=path)))
        assert session.run(session.prepare_turn(TurnRequest("x"))).result.text == "echo: x"


def test_a_key_means_the_content_too(tmp_path):
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    with fake_session(Seeing(), tmp_path) as session:
        first = session.prepare_turn(asked(ImageAttachment(path=path)), key="k")
        again = session.prepare_turn(asked(ImageAttachment(data=PNG)), key="k")
        assert again.turn_id == first.turn_id
        path.write_bytes(GIF)
        with pytest.raises(GreenroomError, match="another request"):
            session.prepare_turn(asked(ImageAttachment(path=path)), key="k")


def test_the_journal_has_a_request_whole_and_its_inputs_small(tmp_path):
    request = load(asked(ImageAttachment(data=PNG)))
    assert STANDARD.decode(STANDARD.encode(request)) == request
    assert attachments.without_content(request) == TurnRequest("look")
    assert json.loads(STANDARD.encode(request))["attachments"]["of"][0]["data"]["$"] == "bytes"


@pytest.mark.parametrize(
    "make",
    [lambda: TextAttachment(text="x", name=5), lambda: TextAttachment(text=5, name="x"), lambda: ImageAttachment(data=b"x", media_type=5)],
)
def test_a_field_that_is_no_text_is_refused(make):
    with pytest.raises(TypeError, match="must be a str, got int"):
        make()
