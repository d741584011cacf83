-- name: renew
-- The store's now is the machine's (?2) unless the stored clock is a little ahead; computed here, so that a renewal is
-- one statement that needs no transaction. Mirrors `Unit.begin`.
UPDATE stoker_workers
SET lease_until = ?3 + (
    SELECT CASE WHEN high - ?2 BETWEEN 1 AND ?4 THEN high ELSE ?2 END FROM stoker_clock
)
WHERE name = ?1 AND lease_until IS NOT NULL
RETURNING
    wid,
    lease_until - ?3,
    (SELECT d.document FROM stoker_documents AS d WHERE d.kind = 'orders' AND d.name = ?1)

-- name: worker_make
INSERT INTO stoker_workers (name, lease_until)
VALUES (?1, ?2 + ?3)
ON CONFLICT (name) DO NOTHING
RETURNING wid, ?2, (SELECT d.document FROM stoker_documents AS d WHERE d.kind = 'orders' AND d.name = ?1)

-- name: worker_retire
INSERT INTO stoker_workers (name, lease_until) VALUES (?1, NULL) ON CONFLICT (name) DO NOTHING

-- name: renew_held
SELECT b.id, n.token, n.cancel, n.claimed
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.wid = ?1

-- name: workers_living
SELECT wid, name, lease_until FROM stoker_workers WHERE lease_until IS NOT NULL

-- name: reap_oldest
SELECT n.wid, n.seq, n.token, n.claimed, b.id
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.wid = ?1

-- name: reap_take
UPDATE stoker_running SET wid = ?3, token = ?4, claimed = ?5, former = ?1, former_at = claimed WHERE wid = ?1 AND seq = ?2

-- name: reap_forget
UPDATE stoker_workers SET lease_until = NULL
WHERE wid = ?1 AND NOT EXISTS (SELECT 1 FROM stoker_running AS n WHERE n.wid = ?1)
RETURNING name

-- name: reap_unlock
DELETE FROM stoker_locks WHERE owner = ?1 RETURNING name
