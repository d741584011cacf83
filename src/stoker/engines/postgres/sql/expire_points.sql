DELETE FROM stoker.point WHERE bucket < $1 RETURNING bucket
