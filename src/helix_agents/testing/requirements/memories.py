"""What every store of memories has to keep."""

from helix_agents.testing.requirements.registry import promised_by, requirements

MEMORIES = requirements(
    promised_by(
        "memory",
        {
            "memories.round-trip": "Every field of a memory comes back as it was; under its own id it is replaced.",
            "memories.said-once": "One source says a thing once: of many callers one creates it, all are told of it.",
            "memories.nothing-lost": "Of memories that several handles save at once, none is lost.",
            "memories.whole": "A write cut off at any statement is there as a whole, or not at all.",
            "memories.scoped": "Nobody finds, changes or deletes a memory of another entity, or of another namespace.",
            "memories.updated": "A change counts the version, and is refused where somebody else was first.",
            "memories.words": "A memory is found by its words from the moment it is saved, the best first.",
            "memories.meaning": "What an embedder has read is found by its meaning: exactly, and apart from others'.",
            "memories.embedded": "An embedding counts for the text it was made of, and for no later one.",
            "memories.unembedded": "What an embedder has not read yet is listed, whoever left it.",
            "memories.deleted": "Deleted memories leave nothing behind by which they are found.",
            "memories.listed": "Memories are paged, newest first, and so are entities and sources, with counts.",
            "memories.refused": "What cannot be kept is refused by name, and nothing of it is stored.",
            "memories.closed": "Closing twice is fine; a closed part refuses work by name, and those beside it go on.",
        },
    )
)
"""Every requirement of the store of memories."""
