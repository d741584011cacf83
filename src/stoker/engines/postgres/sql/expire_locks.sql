DELETE FROM stoker.lock WHERE until <= $1 RETURNING name
