"""What the state capabilities rely on: an inbox, alerts, health, sessions for callers without a run, approvals, policy."""

from helix_agents.capabilities.declaring import Capability, Field, Pattern, SideEffect

COMPANIONS = (
    Capability(
        name="inbox.read",
        purpose="Reads the agent's messages: changes to the keys it watches, oldest first.",
        when_to_use="Use inbox.read after state.shared.watch. Messages stay until you acknowledge them.",
        inputs=(
            Field("limit", "Integer", "How many messages to return.", required=False, default=50, least=1, most=500),
            Field("ack", "Array", "Ids of messages to remove: those you are done with.", required=False, default=None),
        ),
        outputs=(
            Field("messages", "Array", "List of objects with id, type, created_at and the fields of its type."),
            Field("count", "Integer", "Number of messages returned."),
            Field("unread", "Integer", "Number of unread messages."),
        ),
        side_effects=(SideEffect("Removes the messages named in ack."),),
        patterns=(Pattern("Process messages", ("inbox.read()", "inbox.read(ack=[…]) when done")),),
        tags=("inbox", "read"),
        idempotent=True,
    ),
    Capability(
        name="alerts.send",
        purpose="Sends an alert to the supervisor of the agents.",
        when_to_use="Use alerts.send when a person has to know or decide, not to leave notes for yourself.",
        tier="notify",
        inputs=(
            Field("message", "String", "What the supervisor should know."),
            Field(
                "severity",
                "String",
                "How urgent it is.",
                required=False,
                default="info",
                choices=("info", "warning", "critical"),
            ),
        ),
        outputs=(
            Field("alert_id", "String", "The alert's identifier."),
            Field("created_at", "DateTime", "When it was sent."),
        ),
        side_effects=(SideEffect("Adds an open alert, which a person closes."),),
        patterns=(Pattern("Request more quota", ("alerts.send(message='The quota of this agent is used up.')",)),),
        tags=("alerts", "write"),
    ),
    Capability(
        name="alerts.list",
        purpose="Lists the agent's open alerts, newest first.",
        when_to_use="Use alerts.list to see which alerts are still open; alerts are closed by people, not by agents.",
        outputs=(
            Field("alerts", "Array", "List of objects with alert_id, message, severity, created_at."),
            Field("count", "Integer", "Number of alerts."),
        ),
        tags=("alerts", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="system.health",
        purpose="Reports disk space, store, vault and quotas.",
        when_to_use="Use system.health when a capability returns IoError or DatabaseError, not as a routine.",
        outputs=(
            Field("status", "String", "'ok', 'degraded' or 'failing': the worst of the checks."),
            Field("checks", "Array", "List of objects with name, status and detail."),
        ),
        tags=("system", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="session.create",
        purpose="Creates a session for a caller that has none, such as a client of the MCP server.",
        when_to_use="Use session.create before state.session.*; not needed inside a run, which has its own session.",
        outputs=(
            Field("session_id", "String", "Pass it as session_id; no other caller can use it."),
            Field("expires_at", "DateTime", "When it ends unless it is used before then."),
        ),
        side_effects=(SideEffect("Creates a session with an idle timeout."),),
        tags=("session", "write"),
    ),
    Capability(
        name="session.end",
        purpose="Ends a session and destroys its state and subscriptions.",
        when_to_use="Use session.end when done; otherwise the session ends by itself after its idle timeout.",
        outputs=(Field("ended", "Boolean", "True if the session existed."),),
        side_effects=(SideEffect("All session state is permanently deleted."),),
        tags=("session", "write"),
        idempotent=True,
    ),
    Capability(
        name="approvals.list",
        purpose="Lists this agent's calls that wait for a person's decision or were decided, newest first.",
        when_to_use="Use approvals.list after a call returned pending_approval; calls are decided by people, not by agents.",
        inputs=(Field("approval_id", "String", "Only return this approval.", required=False),),
        outputs=(
            Field("approvals", "Array", "List of objects with approval_id, capability, status, result."),
            Field("count", "Integer", "Number of approvals."),
        ),
        tags=("approvals", "read", "safe"),
        idempotent=True,
    ),
    Capability(
        name="policy.explain",
        purpose="Explains which tier a call would have, and which rule decides it.",
        when_to_use="Use policy.explain before a call that might wait for a person; it does not make the call.",
        inputs=(
            Field("capability", "String", "The capability, such as state.shared.set."),
            Field("inputs", "Object", "The inputs the call would have.", required=False),
        ),
        outputs=(
            Field("tier", "String", "'autonomous', 'notify', 'approval_required' or 'blocked'."),
            Field("rule", "String", "The rule that decides, null for the capability's own tier."),
            Field("reason", "String", "Why."),
        ),
        tags=("policy", "read", "safe"),
        idempotent=True,
    ),
)
