"""Supervised coding-agent sessions in parallel, from one process. Every public name is here; `greenroom.testing` has the doubles."""

from greenroom.agent import Agent, Session, TurnStream, TurnTicket
from greenroom.clock import Clock, SystemClock
from greenroom.errors import (
    AuthUnavailableError,
    CliCheckError,
    CliExitError,
    CliNotFoundError,
    CliTimeoutError,
    ContinuityError,
    GreenroomError,
    HostAuthUnplannableError,
    McpConfigError,
    NoRunningTurnError,
    ProcessClosedError,
    ProviderCapabilityError,
    ReapError,
    SchemaDialectError,
    SessionCrashedError,
    SessionResumeError,
    SessionStateError,
    TransportDiedError,
    TurnCancelledError,
    TurnFailedError,
    TurnTimeoutError,
    WaitTimeoutError,
    WorkingDirectoryError,
)
from greenroom.events import (
    AgentEvent,
    ApprovalDenied,
    AssistantText,
    Lifecycle,
    ProviderError,
    RateLimitStatus,
    RawOutput,
    Reasoning,
    RunFinished,
    RunStarted,
    SessionEvent,
    SessionStarted,
    SkillInvoked,
    SkillsDiscovered,
    Stderr,
    SteerConsumed,
    SteerDelivered,
    SteerRejected,
    ToolCall,
    ToolResult,
    TransportDied,
    TransportRestarted,
    TurnInterrupted,
    UsageReport,
)
from greenroom.ids import IdAllocator
from greenroom.model import (
    ApprovalPolicy,
    Checkpoint,
    Continuity,
    ConversationSpec,
    CostSource,
    FailureKind,
    NativeMode,
    NativePermissions,
    OnDeath,
    OutputSchema,
    ProviderProfile,
    ProviderUsage,
    RenewalBudget,
    StdioMcpServer,
    TokenUsage,
    TransportKind,
    Turn,
    TurnRequest,
    TurnResult,
)
from greenroom.policy.restart import RestartPolicy
from greenroom.policy.retry import RetryPolicy
from greenroom.room import Greenroom
from greenroom.transports.base import Conversation, SteerableConversation, Transport
from greenroom.transports.checkpoints import CheckpointStore, InMemoryCheckpointStore
from greenroom.transports.claude.transport import ClaudeStreamTransport

__version__ = "0.1.0"
