INSERT INTO stoker_partitions (pid, swept) VALUES (?1, 0)
