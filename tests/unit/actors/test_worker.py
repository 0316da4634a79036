"""A user's blocking transport that never answers, on a dispatcher that is stepped by hand."""

import pathlib

from greenroom.actors import messages as m
from greenroom.actors.dispatcher import ManualDispatcher
from greenroom.actors.runtime import LoopActor
from greenroom.actors.worker import OPEN_TIMEOUT_S, WorkerConversationActor
from greenroom.model import ApprovalPolicy, ConversationSpec, NativePermissions
from greenroom.testing import FakeClock
from greenroom.transports.base import Flags, LaunchSpec


class Keeper(LoopActor):
    def __init__(self, dispatcher):
        super().__init__(dispatcher)
        self.seen = []

    def handle(self, message):
        self.seen.append(message)


class Silent(ManualDispatcher):
    """Its workers take jobs and never do them."""

    def worker(self, owner, name):
        class Nobody:
            def submit(self, job):
                pass

            aside = submit

            def stop(self):
                pass

        return Nobody()


def test_an_open_that_never_returns_gives_its_slot_back():
    clock = FakeClock()
    dispatcher = Silent(clock)
    keeper = Keeper.start(dispatcher)
    seen = dispatcher._ready[0].seen
    spec = ConversationSpec(cwd=pathlib.Path("/"), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    WorkerConversationActor.start(
        dispatcher,
        session_id="s",
        session=keeper,
        supervisor=keeper,
        transport=object(),
        spec=LaunchSpec(spec=spec, flags=Flags(key=None), incarnation=1, mark="gr/x/y/s/1"),
    )
    dispatcher.run_until_idle()
    assert seen == []
    clock.advance(OPEN_TIMEOUT_S + 1)
    dispatcher.run_until_idle()
    kinds = [type(message) for message in seen]
    assert kinds == [m.StartSettled, m.OpenFailed, m.Down, m.ProcessGone]
    assert "did not open" in str(seen[1].error)
    assert seen[2].expected
    keeper.stop(block=False)
    dispatcher.run_until_idle()
    dispatcher.stop()
