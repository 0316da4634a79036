"""Doubles, contract suites, scripted CLIs and the model server: shipped, and importable without pytest.

The model server needs the extra `modelserver` and is imported by its own name: `greenroom.testing.model_server`.
"""

from __future__ import annotations

from greenroom.testing.contracts import (
    CheckpointStoreContract,
    ClockContract,
    ConversationContract,
    ProcessContract,
    SteerableConversationContract,
    TransportContract,
)
from greenroom.testing.doubles import (
    FakeCheckpointStore,
    FakeClock,
    FakeConversation,
    FakeTransport,
    FakeTurn,
    RecordingEventHandler,
    SequentialIds,
    fake_profile,
    resume_refused,
    turn_died,
    turn_failed,
    turn_timeout,
)
from greenroom.testing.scripted import (
    Plan,
    Seen,
    history,
    overlaps,
    prompts_seen,
    replayed_claude_argv,
    scripted_claude_argv,
    starts,
    write_replayed_claude,
    write_scripted_claude,
)

__all__ = [
    "CheckpointStoreContract",
    "ClockContract",
    "ConversationContract",
    "FakeCheckpointStore",
    "FakeClock",
    "FakeConversation",
    "FakeTransport",
    "FakeTurn",
    "Plan",
    "ProcessContract",
    "RecordingEventHandler",
    "Seen",
    "SequentialIds",
    "SteerableConversationContract",
    "TransportContract",
    "fake_profile",
    "history",
    "overlaps",
    "prompts_seen",
    "replayed_claude_argv",
    "resume_refused",
    "scripted_claude_argv",
    "starts",
    "turn_died",
    "turn_failed",
    "turn_timeout",
    "write_replayed_claude",
    "write_scripted_claude",
]
