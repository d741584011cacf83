-- name: steps_named
SELECT name, state, until, token, at, value FROM stoker_steps WHERE seq = ?1 AND name = ?2

-- name: steps_brought
-- The rows that a claim brings (`steps.brought`): none of a job with more than ?2, or with more than ?3 bytes of values.
SELECT name, state, until, token, at, value FROM stoker_steps
WHERE seq = ?1 AND name > '"' AND (
    SELECT count(*) <= ?2 AND total(size) <= ?3
    FROM (SELECT length(value) AS size FROM stoker_steps WHERE seq = ?1 AND name > '"' LIMIT ?2 + 1)
)

-- name: steps_signaled
-- The rows that a signal has to know: all that are open or early, and all of its name; values of open ones only.
SELECT name, state, until, token, at, CASE state WHEN 2 THEN value END FROM stoker_steps INDEXED BY stoker_steps_open
WHERE seq = ?1 AND state IN (2, 3)
UNION
SELECT name, state, until, token, at, CASE state WHEN 2 THEN value END FROM stoker_steps WHERE seq = ?1 AND name = ?2
UNION
SELECT name, state, until, token, at, CASE state WHEN 2 THEN value END FROM stoker_steps WHERE seq = ?1 AND name > ?3 AND name < ?4

-- name: step_put
INSERT INTO stoker_steps (seq, name, state, until, token, at, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (seq, name) DO UPDATE SET
    state = excluded.state, until = excluded.until, token = excluded.token, at = excluded.at, value = excluded.value

-- name: copy_steps
INSERT INTO stoker_steps (seq, name, state, until, token, at, value)
SELECT ?2, name, state, until, token, at, value FROM stoker_steps WHERE seq = ?1 AND name > '"' AND (
    ?3 IS NULL OR (state < 2 AND at <= (SELECT last.at FROM stoker_steps AS last WHERE last.seq = ?1 AND last.name = ?3))
)

-- name: delete_steps
DELETE FROM stoker_steps WHERE seq = ?1
