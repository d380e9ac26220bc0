-- What is known about entities across sessions. A digest identifies a text, so that each source stores it only once; a
-- memory whose text was changed into that of another has none. Words are folded. Vectors have length 1, and are
-- compared exactly within one entity, so that they need neither a type nor an index of an extension.
CREATE TABLE __agents_memories (
    namespace   text COLLATE "C" NOT NULL,
    entity      text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    source      text COLLATE "C" NOT NULL,
    digest      bytea,
    embedded_by text COLLATE "C" NOT NULL,
    version     bigint   NOT NULL,
    created_at  bigint   NOT NULL,
    updated_at  bigint   NOT NULL,
    session_id  text,
    metadata    text     NOT NULL,
    text        text     NOT NULL,
    words       tsvector NOT NULL,
    vector      real[],
    PRIMARY KEY (namespace, entity, id)
);
CREATE UNIQUE INDEX agents_memories_once ON __agents_memories (namespace, entity, source, digest)
    WHERE digest IS NOT NULL;
CREATE INDEX agents_memories_by_embedder ON __agents_memories (namespace, embedded_by, entity, id);
CREATE INDEX agents_memories_words ON __agents_memories USING gin (words);
