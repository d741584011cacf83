-- The last errors of kinds; a success is noted only where it clears one.
INSERT INTO stoker.trouble (kind, error)
SELECT u.kind, u.error FROM unnest($1::text[], $2::text[]) AS u (kind, error)
WHERE
    u.error IS NOT NULL
    OR (SELECT v.error FROM stoker.trouble AS v WHERE v.kind = u.kind ORDER BY v.n DESC LIMIT 1) IS NOT NULL
