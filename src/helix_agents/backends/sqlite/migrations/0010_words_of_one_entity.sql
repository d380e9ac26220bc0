-- Every word is prefixed with the code of its namespace and entity, instead of having it once in a column of its own.
-- So a query only looks at this entity's words, and not at everyone's uses of the same word.
CREATE VIRTUAL TABLE __agents_memory_words_of_one USING fts5(words, tokenize = 'ascii', detail = 'column');
INSERT INTO __agents_memory_words_of_one (__agents_memory_words_of_one, rank) VALUES ('secure-delete', 1);
INSERT INTO __agents_memory_words_of_one (rowid, words)
    SELECT rowid, CASE words WHEN '' THEN '' ELSE substr(scope, 1, 12) || replace(words, ' ', ' ' || substr(scope, 1, 12)) END
    FROM __agents_memory_words;
DROP TABLE __agents_memory_words;
ALTER TABLE __agents_memory_words_of_one RENAME TO __agents_memory_words;

-- A memory without a digest equals no other, with or without the condition. Without it, entities and their sources are
-- counted from the index alone.
DROP INDEX __agents_memories_once;
CREATE UNIQUE INDEX __agents_memories_once ON __agents_memories (namespace, entity, source, digest);
