"""What a session's handle says before its actor has had a turn on the loop."""

from greenroom import Agent, ApprovalPolicy, Checkpoint, InMemoryCheckpointStore, NativePermissions
from greenroom.testing import FakeTransport


def test_the_held_conversation_is_known_as_soon_as_the_session_is_there(tmp_path):
    agent = Agent(FakeTransport(), permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
    store = InMemoryCheckpointStore()
    store.save("key", Checkpoint("conv-7"))
    for options in ({"resume_id": "conv-7"}, {"checkpoints": store, "checkpoint_key": "key"}):
        with agent.session(tmp_path, **options) as session:
            assert session.conversation_id == "conv-7"
