from __future__ import annotations

import json

import pytest
from test_runner import task

from greenroom.cli.results import Outcome, ResultLog, TaskRecord, done_before, exit_status, read_results, record_of_turn
from greenroom.errors import TaskFileError
from greenroom.model import Continuity, ProviderUsage, TokenUsage, Turn, TurnResult

FIELDS = ["id", "session", "outcome", "text", "structured_output", "continuity", "conversation_id", "turn_id", "usage"]
FIELDS += ["cost_usd", "duration_ms", "retries", "restarts", "error", "hash"]


def record(name="a", outcome=Outcome.DONE, **more):
    return TaskRecord(id=name, session=name, outcome=outcome, **more)


def test_a_record_has_the_fields_that_are_promised():
    usage = ProviderUsage(tokens=TokenUsage(input=3), total_cost_usd=0.5, raw={"x": 1})
    turn = Turn(
        TurnResult(text="\ud800", usage=usage, structured_output={"ok": True}), Continuity.REPLACED, "turn-1", "c", retries=1, restarts=2
    )
    line = record_of_turn(task("a"), turn, 12).to_line()
    assert line.endswith(b"\n")
    values = json.loads(line)
    assert list(values) == FIELDS
    assert values["usage"]["tokens"]["input"] == 3
    assert values["usage"]["cost_source"] == "provider_reported"
    assert (values["cost_usd"], values["continuity"], values["duration_ms"]) == (0.5, "replaced", 12)
    assert (values["retries"], values["restarts"], values["error"]) == (1, 2, None)


def test_the_last_line_of_an_id_wins(tmp_path):
    log = ResultLog(tmp_path / "out.jsonl")
    assert log.open() == {}
    log.append(record(outcome=Outcome.FAILED))
    log.append(record("b"))
    log.append(record())
    log.close()
    assert {name: one["outcome"] for name, one in read_results(tmp_path / "out.jsonl").items()} == {"a": "done", "b": "done"}


WHOLE = record().to_line()


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_a_line_that_a_crash_cut_anywhere_is_repaired(cut, tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(WHOLE + record("b").to_line()[:cut])
    assert "a" in read_results(path)
    log = ResultLog(path)
    records = log.open()
    log.append(record("c"))
    log.close()
    names = [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
    assert names == [*records, "c"]
    assert "b" not in records or cut == len(WHOLE) - 1


def test_a_tail_of_zeros_that_a_power_cut_left_is_repaired(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(WHOLE + b"\0" * 100)
    log = ResultLog(path)
    assert list(log.open()) == ["a"]
    log.close()
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b'[[task]]\nid = "a"\n', b'{"prompt": "x"}\n', WHOLE + b"{}\n" + WHOLE])
def test_a_file_of_something_else_is_refused_and_left_alone(content, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(TaskFileError, match="is not a result of greenroom run"):
        ResultLog(path).open()
    assert path.read_bytes() == content


def test_two_runs_do_not_share_a_file(tmp_path):
    first, second = ResultLog(tmp_path / "out.jsonl"), ResultLog(tmp_path / "out.jsonl")
    first.open()
    with pytest.raises(TaskFileError, match="another run is writing to it"):
        second.open()
    first.close()
    second.open()
    second.close()


@pytest.mark.parametrize("where", ["gone/out.jsonl", "."])
def test_a_place_that_cannot_be_written_is_reported(where, tmp_path):
    with pytest.raises(TaskFileError, match="cannot be written"):
        ResultLog(tmp_path / where).open()


def test_a_task_is_done_only_with_the_same_content(tmp_path):
    one, two = task("a"), task("b")
    records = {"a": {"outcome": "done", "hash": one.hash}, "b": {"outcome": "done", "hash": "other"}}
    assert list(done_before([one, two], records)) == ["a"]
    assert done_before([one], {"a": {"outcome": "failed", "hash": one.hash}}) == {}


@pytest.mark.parametrize(
    ("outcomes", "interrupted", "status"),
    [
        ("", False, 0),
        ("done", True, 0),
        ("done failed", False, 1),
        ("skipped", False, 1),
        ("not_started", False, 1),
        ("interrupted done", True, 130),
    ],
)
def test_exit_status(outcomes, interrupted, status):
    assert exit_status(map(Outcome, outcomes.split()), stopped=130 if interrupted else None) == status
