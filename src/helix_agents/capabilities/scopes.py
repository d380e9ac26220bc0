"""Where everything lies in the store: the scopes callers are bound to, and those of the capabilities themselves."""

SHARED = "shared"
ALERTS = "sys.alerts"
APPROVALS = "sys.approvals"
ACTIVITY = "sys.activity"
ASKED = "sys.asked"
BACKUPS = "sys.backups"
DECIDED = "sys.decided"
HOUSEKEEPING = "sys.housekeeping"
NAMES = "sys.names"
JOURNAL = "sys.journal"
OUTBOX = "sys.outbox"
RATES = "sys.rates"
RESTORES = "sys.restores"
SESSIONS = "sys.sessions"
SNAPSHOTS = "sys.snapshots"
SUBSCRIPTIONS = "sys.subscriptions"


def agent_scope(agent: str) -> str:
    """What belongs to an agent, whatever session it is in."""
    return f"agent:{agent}"


def agent_of(scope: str) -> str | None:
    """Whose persistent state a scope is."""
    return scope.removeprefix("agent:") if scope.startswith("agent:") else None
