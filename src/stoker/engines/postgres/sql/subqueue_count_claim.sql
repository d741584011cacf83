INSERT INTO stoker.subqueue_round AS r (queue, claims) VALUES ($1, 1)
ON CONFLICT (queue) DO UPDATE SET claims = r.claims + 1
