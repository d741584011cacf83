INSERT INTO stoker_points (bucket, queue, metric, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (bucket, queue, metric) DO UPDATE SET value = excluded.value
