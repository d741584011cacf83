-- A lease without an open bit does not exist.
DELETE FROM stoker.lease WHERE id = ANY($1::bigint[]) AND open = open # open
