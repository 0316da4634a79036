"""Images and texts on the real CLIs: they reach the model, once, whatever happens to the turn."""

from __future__ import annotations

import pathlib

import pytest

from greenroom import ImageAttachment, ItemKind, OnDeath, RestartPolicy, TextAttachment
from tests.e2e.codex_stage import CodexStage
from tests.e2e.pictures import digest, png, shown
from tests.e2e.stage import Stage, until

PICTURE = png()


@pytest.fixture(params=["claude", "codex"])
def each(request: pytest.FixtureRequest, tmp_path: pathlib.Path):
    """A stage of either CLI."""
    kind = Stage if request.param == "claude" else CodexStage
    with kind(tmp_path, request.getfixturevalue(request.param)) as stage:
        yield stage


def attached(stage: Stage) -> list[ImageAttachment | TextAttachment]:
    path = stage.folder / "picture.dat"
    path.write_bytes(PICTURE)
    return [ImageAttachment(path=path), TextAttachment(text="of a note", name="note.txt")]


def test_what_is_attached_reaches_the_model_with_the_prompt(each: Stage) -> None:
    with each.session() as session:
        one = each.run(session, "SAY seen", attachments=attached(each))
        two = each.run(session, "SAY two")
    assert (one.result.text, two.result.text) == ("seen", "two")
    assert shown(each.server.requests[0]) == [digest(PICTURE)]
    assert each.shown('<attachment name="note.txt">\nof a note\n</attachment>')[0] == 1
    assert shown(each.server.requests[1]) == [digest(PICTURE)], "it stays in the conversation"


def test_a_retry_in_place_shows_it_once(each: Stage) -> None:
    with each.session() as session:
        turn = each.run(session, "ERROR 529 overloaded_error busy 1\nSAY fine", attachments=attached(each))
    assert (turn.result.text, turn.retries) == ("fine", 1)
    assert [shown(body) for body in each.server.requests] == [[digest(PICTURE)]] * len(each.server.requests)
    assert len(each.server.requests) > 1


def test_a_turn_cut_in_a_tool_goes_on_with_it_and_does_not_show_it_twice(each: Stage) -> None:
    with each.session() as session:
        running = each.begin(session, "BASH touch begun; timeout 60 tail -f /dev/null\nSAY after", attachments=attached(each))
        until((each.cwd / "begun").exists, "the command")
        each.kill()
        turn = running.join()
    assert turn.restarts == 1
    assert shown(each.server.requests[-1]) == [digest(PICTURE)]


def test_a_turn_that_is_sent_again_brings_it_along(each: Stage) -> None:
    resend = RestartPolicy(delays=(0.0,), on_death=OnDeath.RESEND)
    with each.session(agent=each.agent(restart=resend)) as session:
        running = each.begin(
            session, "BASH test -e begun || { touch begun; timeout 60 tail -f /dev/null; }\nSAY after", attachments=attached(each)
        )
        until((each.cwd / "begun").exists, "the command")
        (each.folder / "picture.dat").unlink()
        each.kill()
        assert running.join().result.text == "after"
    assert shown(each.server.requests[-1]) == [digest(PICTURE)] * 2


def test_a_prompt_with_an_image_that_begins_like_a_command_is_a_prompt(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY one")
        turn = each.run(session, "/clear\nSAY two", attachments=attached(each))
    assert turn.result.text == "two"
    assert each.shown("SAY one")[-1] == 1


def test_large_images_do_not_stand_in_the_way_of_a_resume(each: Stage) -> None:
    large = [ImageAttachment(data=png(1200, 1200, noise=True)) for _ in range(2)]
    with each.session() as session:
        for number in range(4):
            each.run(session, f"SAY {number}", attachments=large, prepare={"pin": True})
        each.kill()
        until(lambda: not each.processes(), "the end of it")
        turn = each.run(session, "SAY resumed", prepare={"pin": True})
    assert turn.result.text == "resumed"
    assert len(shown(each.server.requests[-1])) == 8


def test_the_history_has_a_turn_with_attachments_as_one(each: Stage) -> None:
    with each.session() as session:
        each.run(session, "SAY one", attachments=attached(each), prepare={"pin": True})
        each.run(session, "SAY two", prepare={"pin": True})
        thread = session.read_thread()
        session.rollback(1)
        each.run(session, "SAY three", prepare={"pin": True})
    said = [[item.text for item in turn.items if item.kind is ItemKind.USER_TEXT] for turn in thread.turns]
    assert len(said) == 2, said
    assert any("SAY one" in text for text in said[0])
    assert said[1] == ["SAY two"]
    assert shown(each.server.requests[-1]) == [digest(PICTURE)]
    assert each.shown("SAY two")[-1] == 0
