"""Where everything is in the store: the scopes that callers are bound to, and those of the capabilities themselves."""

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
    """What belongs to an agent, in whatever session it is."""
    return f"agent:{agent}"


def agent_of(scope: str) -> str | None:
    """The agent whose persistent state a scope is."""
    return scope.removeprefix("agent:") if scope.startswith("agent:") else None
