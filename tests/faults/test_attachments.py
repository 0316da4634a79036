"""What was attached outlives its file and its host: the next one sends what the first one read."""

from __future__ import annotations

import shutil

import pytest

from greenroom import ApprovalPolicy, Greenroom, ImageAttachment, NativePermissions, SessionStateError, TextAttachment, TurnRequest
from greenroom.testing import FakeTransport, fake_profile

OPTIONS = {"permissions": NativePermissions.bypass(), "approvals": ApprovalPolicy.DENY}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 50_000


class Seeing(FakeTransport):
    """A provider that takes attachments."""

    profile = fake_profile(attachments=True)

    def __init__(self):
        super().__init__()
        self.state_home = "the same in every program"


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "p.png").write_bytes(PNG)
    (tmp_path / "n.txt").write_text("note")
    return TurnRequest("look", attachments=[ImageAttachment(path=tmp_path / "p.png"), TextAttachment(path=tmp_path / "n.txt")])


WHOLE = (ImageAttachment(data=PNG, media_type="image/png"), TextAttachment(text="note", name="n.txt"))


def died(tmp_path, request, key=None):
    """Return the state directory as a host leaves it that is killed when a turn is prepared."""
    with Greenroom(state_dir=tmp_path / "live") as room, room.agent(Seeing(), **OPTIONS).session(tmp_path, session_id="s") as session:
        session.prepare_turn(request, key=key)
        shutil.copytree(tmp_path / "live", tmp_path / "left")
    (tmp_path / "p.png").unlink()
    (tmp_path / "n.txt").unlink()
    return tmp_path / "left"


@pytest.mark.parametrize("way", ["resume", "rerun"])
def test_a_turn_of_a_dead_host_is_sent_whole(tmp_path, request_, way):
    transport = Seeing()
    with Greenroom(state_dir=died(tmp_path, request_)) as room:
        (found,) = room.recovered()
        assert found.request.attachments == WHOLE
        session, ticket = getattr(found, way)(room.agent(transport, **OPTIONS))
        session.run(ticket)
    assert [request.attachments for request in transport.requests] == [WHOLE]


def test_a_key_of_a_dead_host_is_known_by_the_content(tmp_path, request_):
    transport = Seeing()
    left = died(tmp_path, request_, key="k")
    with Greenroom(state_dir=left) as room, room.agent(transport, **OPTIONS).session(tmp_path, session_id="s") as session:
        with pytest.raises(SessionStateError, match="another request"):
            session.prepare_turn(TurnRequest("look"), key="k")
        session.run(session.prepare_turn(TurnRequest("look", attachments=WHOLE), key="k"))
    assert [request.attachments for request in transport.requests] == [WHOLE]


def test_the_record_holds_it_once_and_not_for_ever(tmp_path, request_):
    with Greenroom(state_dir=tmp_path / "live") as room, room.agent(Seeing(), **OPTIONS).session(tmp_path, session_id="s") as session:
        ticket = session.prepare_turn(request_)
        held = (tmp_path / "live" / "journal.db-wal").read_bytes()
        session.run(ticket)
        again = session.prepare_turn(TurnRequest("again"))
        session.run(again)
    assert held.count(b'"$":"ImageAttachment"') == 1
    shutil.copytree(tmp_path / "live", tmp_path / "after")
    with Greenroom(state_dir=tmp_path / "after") as room:
        assert room.recovered() == ()
    assert b'"$":"ImageAttachment"' not in (tmp_path / "after" / "journal.db").read_bytes()
