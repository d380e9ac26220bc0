"""What each capability does: one function per name, what is checked before it, and what a person is shown."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from helix_agents.capabilities.calls import Call
from helix_agents.capabilities.handlers import backup, briefing, companions, persistent, session, shared, snapshot
from helix_agents.domain.records import JSON

Handler: TypeAlias = Callable[[Call], Awaitable[dict[str, JSON]]]
Check: TypeAlias = Callable[[Call], Awaitable[None]]

HANDLERS: dict[str, Handler] = {
    "state.session.get": session.get,
    "state.session.set": session.set_value,
    "state.session.delete": session.delete,
    "state.session.list": session.list_keys,
    "state.session.clear": session.clear,
    "state.persistent.get": persistent.get,
    "state.persistent.set": persistent.set_value,
    "state.persistent.delete": persistent.delete,
    "state.persistent.list": persistent.list_entries,
    "state.persistent.query": persistent.query,
    "state.persistent.history": persistent.history,
    "state.shared.get": shared.get,
    "state.shared.set": shared.set_value,
    "state.shared.delete": shared.delete,
    "state.shared.list": shared.list_entries,
    "state.shared.watch": shared.watch,
    "state.snapshot.create": snapshot.create,
    "state.snapshot.list": snapshot.list_snapshots,
    "state.snapshot.load": snapshot.load,
    "state.briefing.generate": briefing.generate,
    "state.backup.create": backup.create,
    "state.backup.list": backup.list_backups,
    "state.backup.restore": backup.restore,
    "state.backup.export": backup.export,
    "inbox.read": companions.read_inbox,
    "alerts.send": companions.send_alert,
    "alerts.list": companions.list_alerts,
    "system.health": companions.health,
    "session.create": companions.create_session,
    "session.end": companions.end_session,
    "approvals.list": companions.list_approvals,
    "policy.explain": companions.explain_policy,
}

CHECKS: dict[str, Check] = {
    "state.backup.create": backup.check_create,
    "state.backup.restore": backup.check_restore,
    "state.backup.export": backup.check_export,
}

PREVIEWS: dict[str, Handler] = {
    "state.backup.create": backup.preview_create,
    "state.backup.restore": backup.preview_restore,
    "state.backup.export": backup.preview_export,
}
