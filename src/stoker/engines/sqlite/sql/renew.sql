-- The store's now is the machine's (?2) unless the stored clock is a little ahead; computed here, so that a renewal is
-- one statement that needs no transaction. Mirrors `Unit.begin`.
UPDATE stoker_workers
SET lease_until = ?3 + (
    SELECT CASE WHEN high - ?2 BETWEEN 1 AND ?4 THEN high ELSE ?2 END FROM stoker_clock
)
WHERE name = ?1 AND lease_until IS NOT NULL
RETURNING wid, lease_until - ?3
