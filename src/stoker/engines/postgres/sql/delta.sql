-- What a transaction changed in the counts, one row per queue and kind.
INSERT INTO stoker.delta (
    queue, kind, pending, running, retrying, done, dead, canceled, discarded, retried,
    enqueued, completed, retries, failed, cancels
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[],
    $10::int[], $11::int[], $12::int[], $13::int[], $14::int[], $15::int[]
)
