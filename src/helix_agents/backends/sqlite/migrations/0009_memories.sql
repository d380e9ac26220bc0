-- What is known about entities across sessions. A digest identifies a text, so that each source stores it only once; a
-- memory whose text was changed into that of another has none. The text is the last column, so that counting and
-- listing by key leave it alone.
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

-- Vectors of 32-bit numbers, of length 1.
CREATE TABLE __agents_memory_vectors (
    key    INTEGER PRIMARY KEY,
    vector BLOB    NOT NULL
);

-- Words are folded and separated by blanks; `scope` is one word that represents namespace and entity. Deleted words
-- leave the index at once, not when parts of it are next merged.
CREATE VIRTUAL TABLE __agents_memory_words USING fts5(scope, words, tokenize = 'ascii', detail = 'column');
INSERT INTO __agents_memory_words (__agents_memory_words, rank) VALUES ('secure-delete', 1);
