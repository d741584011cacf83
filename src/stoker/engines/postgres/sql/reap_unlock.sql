DELETE FROM stoker.lock WHERE owner = ANY($1::text[]) RETURNING name
