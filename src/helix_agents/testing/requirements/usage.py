"""What every usage store has to keep."""

from helix_agents.testing.requirements.registry import promised_by, requirements

USAGE = requirements(
    promised_by(
        "usage",
        {
            "usage.round-trip": "Every field of an entry comes back as it was.",
            "usage.never-twice": "An entry written again, by whomever, counts nothing; the first one stands.",
            "usage.attempts-apart": "Entries of other attempts, steps and numbers are other entries.",
            "usage.with-the-step": "A step's entries are there with its commit, once, and not without it.",
            "usage.filtered": "query_usage filters by session, root, run, user, agent, source and time (inclusive).",
            "usage.paged": "query_usage pages like every listing, newest first.",
            "usage.rolled-up": "The rollup adds up a session and every session below it, per source and in sum.",
            "usage.by-day": "get_usage_by_day adds up what matches per day in UTC, agent and source, newest day first.",
            "usage.deleted": "delete_usage removes the entries of one session; deleting the session removes them too.",
            "usage.another-root": "An entry that names another root than its session's is found with its session too.",
            "usage.closed": "Closing twice is fine; a closed part refuses work by name, and those beside it go on.",
            "usage.namespaces-apart": "A namespace sees nothing of another one.",
        },
    )
)
"""Every requirement of the usage store."""
