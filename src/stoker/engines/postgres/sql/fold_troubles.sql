-- Of a kind's errors only the newest counts, and not even that once the kind has succeeded.
DELETE FROM stoker.trouble AS t
WHERE
    t.error IS NULL
    OR EXISTS (SELECT 1 FROM stoker.trouble AS later WHERE later.kind = t.kind AND later.n > t.n)
