"""What survives the host: the journal, what is put into it, and what is found in it. `database.Journal` is where to begin.

Above the policy and the events, below the actors; nothing here knows an actor, a process or a provider. One owner, one thread at a time.
"""

from greenroom.errors import JournalError, StateDirError, StoreFailedError
from greenroom.journal.checkpoints import JournalCheckpointStore
from greenroom.journal.codec import STANDARD, Codec
from greenroom.journal.database import Journal
from greenroom.journal.records import Decision, Record, RecoveredSession, RecoveredTicket, Verdict
from greenroom.journal.recovery import Recovery
from greenroom.journal.retention import Retention
from greenroom.model import StateDirProblem, StoreFault

__all__ = [
    "STANDARD",
    "Codec",
    "Decision",
    "Journal",
    "JournalCheckpointStore",
    "JournalError",
    "Record",
    "RecoveredSession",
    "RecoveredTicket",
    "Recovery",
    "Retention",
    "StateDirError",
    "StateDirProblem",
    "StoreFailedError",
    "StoreFault",
    "Verdict",
]
