-- The store's now is the clock's (?2) unless the mark is a little ahead of it; computed here, so that renewing is one
-- statement that needs no transaction.
UPDATE stoker_workers
SET lease_until = ?3 + (
    SELECT CASE WHEN high - ?2 BETWEEN 1 AND ?4 THEN high ELSE ?2 END FROM stoker_clock
)
WHERE name = ?1 AND lease_until IS NOT NULL
RETURNING wid, lease_until - ?3
