SELECT sid, partitions, keep FROM stoker.stream WHERE name = $1::text
