"""What every usage store has to guarantee."""

from helix_agents.testing.requirements.registry import promised_by, requirements

USAGE = requirements(
    promised_by(
        "usage",
        {
            "usage.round-trip": "Every field of an entry comes back as it was.",
            "usage.never-twice": "An entry written again, by whatever process, counts nothing; the first one is kept.",
            "usage.attempts-apart": "Entries with another attempt, step or number are different entries.",
            "usage.with-the-step": "A step's entries become visible with its commit, once, and not without it.",
            "usage.filtered": "query_usage filters by session, root, run, user, agent, source and time (inclusive).",
            "usage.paged": "query_usage pages like every listing, newest first.",
            "usage.rolled-up": "The rollup adds up a session and every session below it, per source and in total.",
            "usage.by-day": "get_usage_by_day adds up matching entries per day in UTC, agent and source, newest day "
            "first.",
            "usage.deleted": "delete_usage removes the entries of one session; deleting the session removes them too.",
            "usage.another-root": "An entry that names a root other than its session's is found with its session as "
            "well.",
            "usage.closed": "Closing twice is fine; a closed part refuses work with a named error, and the parts "
            "beside it keep working.",
            "usage.namespaces-apart": "A namespace sees nothing of another one.",
        },
    )
)
"""Every requirement of the usage store."""
