DELETE FROM stoker_workers
WHERE wid <= (SELECT max(wid) FROM stoker_workers) - ?1
    AND lease_until IS NULL
    AND wid NOT IN (SELECT former FROM stoker_running WHERE former IS NOT NULL)
