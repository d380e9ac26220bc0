-- Words stand behind what stands for their namespace and entity, each of them, and not once beside them: so a question looks
-- at what this entity has said, and not at everything that anybody said with one of its words.
CREATE VIRTUAL TABLE __agents_memory_words_of_one USING fts5(words, tokenize = 'ascii', detail = 'column');
INSERT INTO __agents_memory_words_of_one (__agents_memory_words_of_one, rank) VALUES ('secure-delete', 1);
INSERT INTO __agents_memory_words_of_one (rowid, words)
    SELECT rowid, CASE words WHEN '' THEN '' ELSE substr(scope, 1, 12) || replace(words, ' ', ' ' || substr(scope, 1, 12)) END
    FROM __agents_memory_words;
DROP TABLE __agents_memory_words;
ALTER TABLE __agents_memory_words_of_one RENAME TO __agents_memory_words;

-- A memory without a digest is like no other, with or without the condition; without it, entities and their sources are
-- counted in the index alone.
DROP INDEX __agents_memories_once;
CREATE UNIQUE INDEX __agents_memories_once ON __agents_memories (namespace, entity, source, digest);
