-- What is known of entities across sessions. A digest is of a text, so that one source says a thing once; a memory whose
-- text was changed into that of another has none. The text comes last: what is counted or listed by key leaves it alone.
CREATE TABLE __agents_memories (
    key         INTEGER PRIMARY KEY,
    namespace   TEXT    NOT NULL,
    entity      TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    digest      BLOB,
    embedded_by TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    session_id  TEXT,
    metadata    TEXT    NOT NULL,
    text        TEXT    NOT NULL
);
CREATE UNIQUE INDEX __agents_memories_by_id ON __agents_memories (namespace, entity, id);
CREATE UNIQUE INDEX __agents_memories_once ON __agents_memories (namespace, entity, source, digest)
    WHERE digest IS NOT NULL;
CREATE INDEX __agents_memories_by_embedder ON __agents_memories (namespace, embedded_by, entity, id);

-- 32-bit numbers, of length 1.
CREATE TABLE __agents_memory_vectors (
    key    INTEGER PRIMARY KEY,
    vector BLOB    NOT NULL
);

-- Words come folded and parted by blanks; `scope` is one word that stands for namespace and entity. What is deleted is to
-- leave the index at once, not when parts of it are next put together.
CREATE VIRTUAL TABLE __agents_memory_words USING fts5(scope, words, tokenize = 'ascii', detail = 'column');
INSERT INTO __agents_memory_words (__agents_memory_words, rank) VALUES ('secure-delete', 1);
