"""Whatever comes, in whatever order: nothing raises, an attempt ends at most once, and one that is interrupted ends within its bounds."""

from __future__ import annotations

import copy

from claude_wire import (
    S1,
    S2,
    U1,
    U2,
    Cli,
    aborted,
    api_error,
    background_result,
    calls,
    control_response,
    echo,
    failed_result,
    init,
    life,
    result,
    says,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.events import SteerConsumed, SteerRejected
from greenroom.model import ApprovalPolicy
from greenroom.transports.base import AttemptEnded, AttemptSwallowed, Kill, Ready, StartFailed

UUIDS = (U1, U2, S1, S2)
STATES = ("queued", "started", "completed", "cancelled", "odd")
FRAMES = [
    *(life(uuid, state) for uuid in UUIDS for state in STATES),
    *(build(uuid) for uuid in UUIDS for build in (init, echo, result, aborted, failed_result)),
    *(says("text", uuid) for uuid in UUIDS),
    *(init(), says("text"), result(), aborted(), background_result(), api_error(), calls("Bash")),
    result(U1, S1, uuid="once"),
    background_result(user_message_uuids=[U1]),
    {"type": "system", "subtype": "permission_denied", "tool_name": "Bash", "tool_use_id": "t"},
    {"type": "control_request", "request_id": 1, "request": {"subtype": "can_use_tool", "tool_name": "Bash"}},
    *(
        control_response(f"greenroom-{n}", **answer)
        for n in range(1, 6)
        for answer in ({}, {"cancelled": True}, {"cancelled": False}, {"still_queued": [U1], "cancelled": [U2]})
    ),
    {"type": "conversation_reset"},
    {},
]
FRAME = st.sampled_from(range(len(FRAMES))).map(lambda index: ("feed", copy.deepcopy(FRAMES[index])))
ACTION = st.sampled_from(["start", "probe", "steer", "interrupt", "oversized"]).map(lambda name: (name, None))
TIME = st.sampled_from([0.5, 3.0, 11.0]).map(lambda seconds: ("later", seconds))
STEPS = st.lists(st.one_of(FRAME, FRAME, FRAME, ACTION, TIME), max_size=40)


class World(Cli):
    def __init__(self, *, ready: bool, approvals: ApprovalPolicy) -> None:
        super().__init__(approvals=approvals)
        self.begun = 0
        self.open() if not ready else self.ready()

    def can_start(self) -> bool:
        return bool(self.of(Ready)) and self.begun == self.closed() and not self.of(Kill)

    def closed(self) -> int:
        return len(self.of(AttemptEnded, AttemptSwallowed))

    def do(self, name: str, argument: object) -> None:
        match name:
            case "feed":
                self.feed(argument)
            case "later":
                self.later(argument)
            case "start" | "probe":
                if self.can_start():
                    self.begun += 1
                    self.start((U1, U2)[self.begun % 2], probe=name == "probe", deadline_s=self.now_s + 30, timeout_s=30)
            case "steer":
                self.steer(uuid=(S1, S2)[self.begun % 2])
            case _:
                getattr(self, name)()


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans(), st.sampled_from(ApprovalPolicy))
def test_any_order(steps: list[tuple[str, object]], ready: bool, approvals: ApprovalPolicy) -> None:
    world = World(ready=ready, approvals=approvals)
    for name, argument in steps:
        world.do(name, argument)
        assert world.closed() <= world.begun
        assert world.codec.sent <= (world.begun > world.closed())
    world.interrupt()
    world.later(200)
    assert world.closed() == world.begun or world.of(Kill)
    assert len(world.of(StartFailed)) + len(world.of(Ready)) <= 1
    world.exit(signal=9)
    assert world.codec.deadline_s is None


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_every_steer_is_settled_once(steps: list[tuple[str, object]]) -> None:
    world = World(ready=True, approvals=ApprovalPolicy.DENY)
    taken: list[str] = []
    for index, (name, argument) in enumerate(steps):
        if name == "steer":
            text = f"steer {index}"
            if world.steer(text, f"uuid-{index}") is not None:
                taken.append(text)
        else:
            world.do(name, argument)
    world.exit(signal=9)
    settled = [item.text for item in world.of(SteerConsumed, SteerRejected)]
    assert sorted(settled) == sorted(taken)
