"""What the transcript on disk tells after a death: which message was taken, which tool calls were written down."""

import json

import pytest

from greenroom.events import ToolCall
from greenroom.model import TurnRequest
from greenroom.policy.commands import How
from greenroom.transports.claude import lines, transcript

CONVERSATION = "5f0c2b16-6f3a-4f6f-8d2e-0d6c0a3a7a11"


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / ".claude" / "projects" / "-somewhere"
    folder.mkdir(parents=True)

    def write(*rows, tail=""):
        text = "".join(json.dumps(row) + "\n" for row in rows) + tail
        (folder / f"{CONVERSATION}.jsonl").write_text(text)
        return {"HOME": str(tmp_path)}

    return write


USER = {"type": "user", "uuid": "u-1", "message": {"role": "user", "content": "x"}}
CALL = {"type": "assistant", "uuid": "a-1", "message": {"content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash"}]}}


@pytest.mark.parametrize(
    ("rows", "tail", "taken"),
    [
        ([USER], "", True),
        ([{"type": "queue-operation", "content": "u-1"}], "", False),
        ([{"type": "attachment", "parentUuid": "u-1", "uuid": "b"}], "", False),
        ([], json.dumps(USER)[:-9], False),  # cut by the kill
        ([], json.dumps(USER), True),  # whole, without its end
        ([{**USER, "uuid": "u-2"}], "", False),
    ],
)
def test_a_message_was_taken_if_its_row_is_there(home, rows, tail, taken):
    assert transcript.took(home(*rows, tail=tail), CONVERSATION, "u-1") is taken


def test_a_conversation_that_is_not_there_tells_nothing(tmp_path):
    assert transcript.took({"HOME": str(tmp_path)}, CONVERSATION, "u-1") is None


def test_the_state_may_live_elsewhere(home, tmp_path):
    home(USER)
    assert transcript.took({"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}, CONVERSATION, "u-1") is True


def test_calls_that_were_not_written_down_are_named(home):
    env = home(USER, CALL)
    assert transcript.missing(env, CONVERSATION, ["toolu_1", "toolu_2"]) == ("toolu_2",)
    assert transcript.missing(env, "another", ["toolu_1"]) == ()


def test_the_continuation_tells_of_lost_calls_and_is_plain_without():
    call = ToolCall("toolu_2", "Bash", {"command": "git push"})
    assert lines.content_of(How.CONTINUE, TurnRequest("p")) == lines.CONTINUE_TEXT
    told = lines.content_of(How.CONTINUE, TurnRequest("p"), (call,))
    assert told.startswith(lines.CONTINUE_TEXT)
    assert '- Bash {"command": "git push"}' in told
    prompt, reminder = lines.content_of(How.PROMPT, TurnRequest("p"), (call,))
    assert prompt == {"type": "text", "text": "p"}
    assert "git push" in reminder["text"]
    many = tuple(ToolCall(str(n), "Bash", {"command": "x" * 10_000}) for n in range(100))
    assert len(lines.content_of(How.CONTINUE, TurnRequest("p"), many)) < 50_000
