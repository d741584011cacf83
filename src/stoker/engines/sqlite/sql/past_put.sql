INSERT INTO stoker_past (seq, due, base, crashes, throttles, started, progress, metadata, log)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (seq) DO UPDATE SET
    due = excluded.due,
    base = excluded.base,
    crashes = excluded.crashes,
    throttles = excluded.throttles,
    started = excluded.started,
    progress = excluded.progress,
    metadata = excluded.metadata,
    log = excluded.log
