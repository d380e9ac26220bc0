"""`state.briefing.*`: what happened while an agent was away."""

from helix_agents.capabilities.declaring import Capability, ErrorCase, Field, Hint, Pattern

BRIEFING = (
    Capability(
        name="state.briefing.generate",
        purpose="Generates a context briefing summarising what changed since the agent's last activity.",
        when_to_use=(
            "Use state.briefing.generate when reconnecting after a period of inactivity to understand what happened while"
            " the agent was offline. The briefing is rule-based (no LLM required) and covers filesystem changes, process"
            " events, pending approvals, unread messages, alerts, and health status. It does not mark messages as read;"
            " use inbox.read for that."
        ),
        inputs=(
            Field(
                "since",
                "DateTime",
                "Gather changes after this timestamp. If omitted, uses the agent's last activity timestamp.",
                required=False,
            ),
            Field(
                "detail_level",
                "String",
                "'summary' for counts only (default), or 'detailed' for full change lists.",
                required=False,
                default="summary",
                choices=("summary", "detailed"),
            ),
        ),
        outputs=(
            Field(
                "briefing",
                "Object",
                "Structured briefing with since, filesystem_changes, process_events, pending_approvals,"
                " unread_messages, alerts, health, and a template-generated summary string.",
            ),
        ),
        patterns=(
            Pattern(
                "Reconnect and catch up",
                (
                    "state.briefing.generate() to see what changed",
                    "Read the summary field for a quick overview",
                    "If needed, use detail_level='detailed' for full change lists",
                ),
            ),
            Pattern(
                "Check activity over a specific window",
                ("state.briefing.generate(since='2026-03-25T14:00:00Z') to review changes since a specific time",),
            ),
        ),
        errors=(
            ErrorCase(
                error="InvalidTimestamp",
                description="The since parameter is not a valid ISO 8601 timestamp.",
                recovery=(Hint(action="fix_format", description="Use ISO 8601 format: YYYY-MM-DDTHH:MM:SSZ"),),
            ),
        ),
        tags=("state", "briefing", "read", "safe"),
        idempotent=True,
    ),
)
