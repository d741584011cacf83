DELETE FROM stoker.subqueue WHERE queue = $1 AND name = ANY($2::text[])
