UPDATE stoker_partitions SET swept = ?2 WHERE pid = ?1
