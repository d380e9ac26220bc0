"""What every store of memories has to guarantee."""

from helix_agents.testing.requirements.registry import promised_by, requirements

MEMORIES = requirements(
    promised_by(
        "memory",
        {
            "memories.round-trip": "Every field of a memory comes back as it was; saving under an existing id "
            "replaces it.",
            "memories.said-once": "Within one source a text is stored once: of many callers one creates the memory, "
            "and all get it.",
            "memories.nothing-lost": "Of memories that several handles save at the same time, none is lost.",
            "memories.whole": "A write cut off at any statement is stored completely or not at all.",
            "memories.scoped": "A memory of another entity, or of another namespace, cannot be found, changed or "
            "deleted.",
            "memories.updated": "A change raises the version, and is refused if another change came first.",
            "memories.words": "A memory is found by its words from the moment it is saved, best match first.",
            "memories.meaning": "What an embedder has read is found by its meaning: exactly, and separately from "
            "other embedders.",
            "memories.embedded": "An embedding counts for the text it was made from, and for no later one.",
            "memories.unembedded": "Memories that an embedder has not read yet are listed, whichever process left "
            "them.",
            "memories.deleted": "Deleted memories leave nothing behind by which they could be found.",
            "memories.listed": "Memories are paged, newest first, and so are entities and sources, with counts.",
            "memories.refused": "What cannot be stored is refused with a named error, and nothing of it is stored.",
            "memories.closed": "Closing twice is fine; a closed part refuses work with a named error, and the parts "
            "beside it keep working.",
        },
    )
)
"""Every requirement of the store of memories."""
