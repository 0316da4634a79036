from __future__ import annotations

import contextlib
import io
import json

import pytest

from greenroom.cli.fields import _OF_TASK, BadInputError, build_tasks
from greenroom.cli.plan import make_plan
from greenroom.cli.requests import request_of
from greenroom.cli.taskfile import read_source
from greenroom.cli.tasks import Given
from greenroom.errors import TaskFileError
from greenroom.model import ImageAttachment, InteractionMode, TextAttachment

NOTHING = Given()


def load(path, given=NOTHING):
    source = read_source(str(path))
    return make_plan(source.name, build_tasks(source, given))


def problems(path, given=NOTHING):
    with pytest.raises((BadInputError, TaskFileError)) as caught:
        load(path, given)
    return caught.value.problems if isinstance(caught.value, BadInputError) else [caught.value]


def write(folder, text, name="tasks.toml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


GOOD = '[[task]]\nid = "a"\nprompt = "x"\npermissions = "bypass"\n'

TOML = {
    # name: (text, line, key, words of the message, words of the hint)
    "empty": ("", None, None, "is empty", "[[task]]"),
    "blank": (" \n\n", None, None, "is empty", "[[task]]"),
    "no task": ("[defaults]\nmodel = 'x'\n", None, None, "has no task", "[[task]]"),
    "malformed": ('[[task]]\nprompt = "x\n', 2, None, "not TOML", ""),
    "not utf-8": (b'[[task]]\nprompt = "\xff"\n', 2, None, "not UTF-8", ""),
    "unknown table": ('[[tasks]]\nprompt = "x"\n', 1, "tasks", "unknown key", "did you mean 'task'"),
    "task is a table": ('[task]\nprompt = "x"\n', 1, "task", "must be tables", "[[task]]"),
    "defaults is a list": ('[[defaults]]\nmodel = "x"\n' + GOOD, 1, "defaults", "must be a table", "[defaults]"),
    "unknown key": (GOOD + 'promt = "x"\n', 5, "promt", "unknown key", "did you mean 'prompt'"),
    "unknown default": ('[defaults]\nprompt = "x"\n' + GOOD, 2, "prompt", "unknown key in [defaults]", ""),
    "unknown key, nothing near": (GOOD + "zzz = 1\n", 5, "zzz", "unknown key", "known keys"),
    "missing prompt": ('[[task]]\nid = "a"\npermissions = "bypass"\n', 1, "prompt", "is missing", "prompt_file"),
    "empty prompt": ('[[task]]\npermissions = "bypass"\nprompt = " "\n', 3, "prompt", "is empty", ""),
    "both prompts": (GOOD + 'prompt_file = "p"\n', 5, "prompt_file", "beside 'prompt'", "either"),
    "prompt file gone": ('[[task]]\npermissions = "bypass"\nprompt_file = "gone.md"\n', 3, "prompt_file", "cannot be read", ""),
    "missing permissions": ('[[task]]\nprompt = "x"\n', 1, "permissions", "has no default", "--permissions"),
    "unknown permissions": ('[[task]]\nprompt = "x"\npermissions = "by-pass"\n', 3, "permissions", "unknown value", "'bypass'"),
    "half a permission": ('[[task]]\nprompt = "x"\npermissions = "whatever"\n', 3, "permissions", "unknown value", "one of: bypass"),
    "unknown provider": (GOOD + 'provider = "cluade"\n', 5, "provider", "unknown value", "'claude'"),
    "unknown approvals": (GOOD + 'approvals = "ask"\n', 5, "approvals", "unknown value", "deny"),
    "prompt is a number": ('[[task]]\npermissions = "bypass"\nprompt = 3\n', 3, "prompt", "expected a string, got an integer", ""),
    "timeout is a string": (GOOD + 'timeout = "5"\n', 5, "timeout", "expected a number of seconds, got a string", ""),
    "timeout is a boolean": (GOOD + "timeout = true\n", 5, "timeout", "got a boolean", ""),
    "timeout is zero": (GOOD + "timeout = 0\n", 5, "timeout", "more than 0", ""),
    "timeout is endless": (GOOD + "timeout = inf\n", 5, "timeout", "more than 0", ""),
    "after is a string": (GOOD + 'after = "b"\n', 5, "after", "expected an array of task ids", 'after = ["id"]'),
    "env is a string": (GOOD + 'env = "A=1"\n', 5, "env", "expected a table", ""),
    "env holds a number": (GOOD + "env = { A = 1 }\n", 5, "env", "'A': expected a string", ""),
    "env in a table": (GOOD + "[task.env]\nA = 1\n", 5, "env", "'A': expected a string", ""),
    "env name": (GOOD + 'env = { "A=B" = "1" }\n', 5, "env", "cannot be a variable", ""),
    "schema is a number": (GOOD + "schema = 1\n", 5, "schema", "expected a table or the path", ""),
    "schema gone": (GOOD + 'schema = "gone.json"\n', 5, "schema", "cannot be read", ""),
    "schema of no object": (GOOD + 'schema = { type = "array" }\n', 5, "schema", "root must be of type 'object'", ""),
    "unknown effort": (GOOD + 'effort = "hihg"\n', 5, "effort", "unknown value 'hihg'", "did you mean 'high'"),
    "unknown effort in defaults": ('[defaults]\neffort = "much"\n' + GOOD, 2, "effort", "unknown value 'much'", "one of: low"),
    "prompt of blanks only": ('[[task]]\npermissions = "bypass"\nprompt = " "\n', 3, "prompt", "is empty", ""),
    "attachments is a string": (
        GOOD + 'attachments = "p.png"\n',
        5,
        "attachments",
        "expected an array of paths",
        'attachments = ["picture.png"]',
    ),
    "attachment is a number": (GOOD + "attachments = [1]\n", 5, "attachments", "expected a string, got an integer", ""),
    "attachment gone": (GOOD + 'attachments = ["gone.png"]\n', 5, "attachments", "gone.png' cannot be read", ""),
    "attachment is a directory": (GOOD + 'attachments = ["."]\n', 5, "attachments", "is a directory", ""),
    "unknown mode": (GOOD + 'interaction_mode = "plann"\n', 5, "interaction_mode", "unknown value 'plann'", "did you mean 'plan'"),
    "cwd gone": (GOOD + 'cwd = "gone"\n', 5, "cwd", "is not a directory", ""),
    "default cwd gone": ('[defaults]\ncwd = "gone"\n' + GOOD + GOOD.replace('"a"', '"b"'), 2, "cwd", "is not a directory", ""),
    "id is empty": ('[[task]]\nid = ""\nprompt = "x"\npermissions = "bypass"\n', 2, "id", "is empty", ""),
    "id has a newline": ('[[task]]\nid = "a\\nb"\nprompt = "x"\npermissions = "bypass"\n', 2, "id", "control characters", ""),
    "duplicate id": (GOOD + GOOD, 5, "id", "duplicate id 'a' (first in line 1)", "ids of their own"),
    "duplicate content": ((GOOD + GOOD).replace('id = "a"\n', ""), 4, "id", "duplicate id", "ids of their own"),
    "unknown id": (GOOD + 'after = ["b"]\n' + GOOD.replace('"a"', '"bb"'), 1, "after", "no task has the id 'b'", "'bb'"),
    "itself": (GOOD + 'after = ["a"]\n', 1, "after", "waits for itself", ""),
    "session against after": (
        GOOD + 'session = "s"\nafter = ["b"]\n' + GOOD.replace('"a"', '"b"') + 'session = "s"\n',
        1,
        "after",
        "'a' comes before 'b' in session 's'",
        "file order",
    ),
    "mixed session": (
        GOOD + 'session = "s"\nmodel = "m"\n' + GOOD.replace('"a"', '"b"') + 'session = "s"\n',
        7,
        "model",
        "differs from task 'a' in the same session 's'",
        "another session",
    ),
}


@pytest.mark.parametrize("name", TOML)
def test_toml_mistakes_are_reported_with_file_line_and_key(name, tmp_path):
    text, line, key, why, hint = TOML[name]
    path = write(tmp_path, text)
    (problem,) = problems(path)
    assert (problem.path, problem.line, problem.key) == (str(path), line, key)
    assert why in str(problem)
    assert str(problem).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert hint in (problem.hint or "")


JSONL = {
    "malformed": ('{"prompt": "x"}\n{"prompt": \n', 2, None, "not a JSON object"),
    "half a line": ('{"prompt": "x", "permissions": "bypass"}\n{"pro', 2, None, "not a JSON object"),
    "not an object": ('\n["x"]\n', 2, None, "not a JSON object"),
    "key twice": ('{"prompt": "x", "prompt": "y"}\n', 1, "prompt", "given twice"),
    "unknown key": ('{"prompt": "x", "permissions": "bypass", "sesion": "s"}\n', 1, "sesion", "unknown key"),
    "null": ('{"prompt": null, "permissions": "bypass"}\n', 1, "prompt", "got null"),
    "nan": ('{"prompt": "x", "permissions": "bypass", "timeout": NaN}\n', 1, "timeout", "more than 0"),
    "nested": ("[" * 100_000 + "\n", 1, None, "nested too deeply"),
}


@pytest.mark.parametrize("name", JSONL)
def test_jsonl_mistakes_are_reported_with_file_line_and_key(name, tmp_path):
    text, line, key, why = JSONL[name]
    problem = problems(write(tmp_path, text, "tasks.jsonl"))[0]
    assert (problem.line, problem.key) == (line, key)
    assert why in str(problem)


def test_every_mistake_is_reported_at_once(tmp_path):
    found = problems(write(tmp_path, '[[task]]\ntimeout = "x"\npromt = "y"\n[[task]]\nprompt = "z"\n'))
    assert [(problem.line, problem.key) for problem in found] == [(2, "timeout"), (3, "promt"), (4, "permissions")]


def test_permissions_that_several_tasks_do_not_say_are_missed_in_each(tmp_path):
    found = problems(write(tmp_path, GOOD.replace("permissions", "#") + GOOD.replace('"a"', '"b"').replace("permissions", "#")))
    assert [(problem.line, problem.key) for problem in found] == [(1, "permissions"), (5, "permissions")]


VALUES = ['"a\\u0000b"', '""', '" "', '"no such"', "3", "-1.5", "true", "[]", "[3]", '["x"]', "[[]]", "{}", "{ type = 3 }", "1979-05-27"]


@pytest.mark.parametrize("key", [*_OF_TASK, "nonsense"])
def test_no_value_of_any_key_is_more_than_a_mistake(key, tmp_path):
    two = GOOD + GOOD.replace('"a"', '"b"')
    own = "".join(text for text in GOOD.splitlines(keepends=True) if not text.startswith(key))
    bare = two.replace('permissions = "bypass"\n', "")
    for line in (f"{key} = {value}\n" for value in VALUES):
        for text in (own + line, f"[defaults]\n{line}{two}", f"[defaults]\n{line}{bare}"):
            with contextlib.suppress(BadInputError, TaskFileError):
                load(write(tmp_path, text))


def test_what_is_wrong_in_the_defaults_is_told_once_and_nothing_is_made_of_it(tmp_path):
    tasks = GOOD.replace('permissions = "bypass"\n', "") + GOOD.replace('"a"', '"b"').replace('permissions = "bypass"\n', "")
    found = problems(write(tmp_path, '[defaults]\npermissions = "by-pass"\nprovider = "gpt"\ntimeout = "1"\n' + tasks))
    assert [(problem.line, problem.key) for problem in found] == [(2, "permissions"), (3, "provider"), (4, "timeout")]


def test_a_file_that_is_not_there_and_one_of_another_kind(tmp_path):
    assert "cannot be read: No such file" in str(problems(tmp_path / "gone.toml")[0])
    assert "cannot be read: Is a directory" in str(problems(tmp_path)[0])
    assert "unknown kind of file '.yaml'" in str(problems(write(tmp_path, "a: 1", "tasks.yaml"))[0])


@pytest.mark.parametrize(("content", "why"), [(b"\xff\xfe", "neither an image nor UTF-8 text"), (b"x" * 2**20 + b"y", "at most 1048576")])
def test_a_file_that_cannot_be_attached(content, why, tmp_path):
    write(tmp_path, content, "a.bin")
    (problem,) = problems(write(tmp_path, GOOD + 'attachments = ["a.bin"]\n'))
    assert (problem.line, problem.key) == (5, "attachments")
    assert why in str(problem)


def test_what_is_attached_may_make_a_request_too_long(tmp_path):
    write(tmp_path, "x" * 2**20, "a.txt")
    (problem,) = problems(write(tmp_path, GOOD + 'provider = "codex"\nattachments = ["a.txt"]\n'))
    assert "with what is attached" in str(problem)


@pytest.mark.parametrize(("content", "why"), [("{", "is not JSON"), ("[]", "holds an array"), (b"\xff", "is not UTF-8")])
def test_a_schema_file_that_cannot_be_used(content, why, tmp_path):
    write(tmp_path, content, "s.json")
    (problem,) = problems(write(tmp_path, GOOD + 'schema = "s.json"\n'))
    assert problem.line == 5
    assert why in str(problem)


def test_a_cycle_is_named(tmp_path):
    tasks = "".join(
        f'[[task]]\nid = "{one}"\nprompt = "x"\npermissions = "bypass"\nafter = ["{other}"]\n' for one, other in ("ab", "bc", "ca")
    )
    (problem,) = problems(write(tmp_path, tasks))
    assert problem.line == 1
    assert "'a' waits for 'b', 'b' waits for 'c', 'c' waits for 'a'" in str(problem)


def test_a_cycle_through_the_order_of_a_session_is_named(tmp_path):
    text = GOOD + 'session = "s"\nafter = ["c"]\n'
    text += '[[task]]\nid = "b"\nprompt = "x"\npermissions = "bypass"\nsession = "s"\n'
    text += '[[task]]\nid = "c"\nprompt = "x"\npermissions = "bypass"\nafter = ["b"]\n'
    (problem,) = problems(write(tmp_path, text))
    assert "'b' follows in its session 'a'" in str(problem)
    assert "'c' waits for 'b'" in str(problem)


def test_a_very_long_chain_is_no_cycle(tmp_path):
    lines = [json.dumps({"id": str(n), "prompt": "x", "permissions": "bypass", "after": [str(n - 1)] if n else []}) for n in range(3000)]
    assert len(load(write(tmp_path, "\n".join(lines), "t.jsonl")).waves()) == 3000


def test_lines_are_right_behind_prompts_that_look_like_task_files(tmp_path):
    text = '[[task]]\nid = "a"\npermissions = "bypass"\nprompt = """\n[[task]]\nsay \\"""\nid = 3 # ""\n"""\n'
    text += "[[task]]\nid = 'b' # it's \"\"\" here\npermissions = 'bypass'\nprompt = '''\n[[task]]\n'''\n"
    text += '[[task]]\nid = "c"\nprompt = "x"\npermissions = "nothing"\n'
    (problem,) = problems(write(tmp_path, text))
    assert (problem.line, problem.key) == (18, "permissions")


def test_tasks_written_inline_point_at_the_line_of_task(tmp_path):
    (problem,) = problems(write(tmp_path, 'task = [{prompt = "x", permissions = "no"}]\n'))
    assert (problem.line, problem.key) == (1, "permissions")


# --- what is right ---------------------------------------------------------------------------------------------------------------


def test_a_task_wins_over_the_defaults_and_those_over_the_command_line(tmp_path):
    text = '[defaults]\nmodel = "d"\nenv = { A = "1", B = "1" }\n' + GOOD + 'model = "t"\nenv = { B = "2" }\n' + GOOD.replace('"a"', '"b"')
    first, second = load(write(tmp_path, text), Given(model="f", timeout=3, permissions="workspace-write")).tasks
    assert (first.settings.model, second.settings.model) == ("t", "d")
    assert (first.timeout, second.timeout) == (3, 3)
    assert first.settings.permissions == "bypass"
    assert dict(first.settings.env) == {"A": "1", "B": "2"}


def test_paths_are_relative_to_the_task_file(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "p.md").write_text("from a file")
    (tmp_path / "s.json").write_text('{"type": "object"}')
    path = write(tmp_path, '[[task]]\npermissions = "bypass"\nprompt_file = "p.md"\nschema = "s.json"\ncwd = "sub"\n')
    monkeypatch.chdir("/")
    (task,) = load(path).tasks
    assert (task.prompt, task.schema, task.settings.cwd) == ("from a file", {"type": "object"}, tmp_path / "sub")


def test_the_id_of_a_nameless_task_is_a_hash_of_its_content(tmp_path):
    text = GOOD.replace('id = "a"\n', "")
    (one,) = load(write(tmp_path, text)).tasks
    (same,) = load(write(tmp_path, "# moved\n" + text + "timeout = 5\n")).tasks
    (other,) = load(write(tmp_path, text + 'model = "m"\n')).tasks
    assert one.id == same.id == one.hash[:12]
    assert one.id != other.id


@pytest.mark.parametrize("text", [GOOD, '\n {"id": "a", "prompt": "x\u2028y", "permissions": "bypass"}\r\n\r\n'])
def test_standard_input_is_toml_or_jsonl(text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text.encode())))
    assert [task.id for task in load("-").tasks] == ["a"]


def test_a_session_named_like_a_task_is_not_that_tasks_own(tmp_path):
    first, second = load(write(tmp_path, GOOD + GOOD.replace('"a"', '"b"') + 'session = "a"\n')).tasks
    assert first.session_name == second.session_name == "a"
    assert first.session_key != second.session_key


def test_waves_follow_after_and_the_order_of_sessions(tmp_path):
    text = GOOD + 'session = "s"\n' + GOOD.replace('"a"', '"b"') + 'after = ["d"]\n'
    text += GOOD.replace('"a"', '"c"') + 'session = "s"\n' + GOOD.replace('"a"', '"d"')
    assert [[task.id for task in wave] for wave in load(write(tmp_path, text)).waves()] == [["a", "d"], ["b", "c"]]


def test_what_is_attached_is_read_when_the_file_is_and_counts_in_the_hash(tmp_path):
    picture = b"\x89PNG\r\n\x1a\n0"
    write(tmp_path, picture, "a.dat")
    write(tmp_path, "note", "n.txt")
    path = write(tmp_path, GOOD + 'attachments = ["a.dat", "n.txt"]\ninteraction_mode = "plan"\n')
    (one,) = load(path).tasks
    write(tmp_path, picture + b"1", "a.dat")
    (other,) = load(path).tasks
    assert one.attachments == (ImageAttachment(data=picture, media_type="image/png"), TextAttachment(text="note", name="n.txt"))
    request = request_of(one)
    assert (request.attachments, request.interaction_mode) == (one.attachments, InteractionMode.PLAN)
    assert one.hash != other.hash


def test_the_hash_of_a_task_without_such_things_is_what_it_was(tmp_path):
    (task,) = load(write(tmp_path, GOOD + 'cwd = "/"\n')).tasks
    assert task.hash == "6e1e834ab10cfa265e3b4380a2129c6f6de45eceec47c18cd4e5281a0f8c137c"
