SELECT sid, partitions, keep FROM stoker_streams WHERE name = ?1
