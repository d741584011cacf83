-- Why a payload is refused, in the words of `codec.json_check`; null: it is taken. The type `json` checks the syntax.
-- `enqueue` calls it, with a search path and a reading of backslashes that no session changes.
CREATE FUNCTION stoker.json_fault(given json) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
DECLARE
    written text := given::text;
    parts json[] := ARRAY[given];
    piece text;
BEGIN
    IF json_typeof(given) NOT IN ('object', 'array', 'null') THEN
        RETURN 'must be an object (keywords), a list (positionals) or null (no arguments)';
    END IF;
    IF position('\u' IN written) > 0 THEN
        written := replace(written, '\\', 'xx');  -- each backslash that is left begins an escape
        IF position('\u0000' IN written) > 0 THEN
            RETURN 'contains a NUL character';
        END IF;
        written := regexp_replace(written, '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', 'x', 'g');
        IF written ~ '\\u[dD][89a-fA-F]' THEN
            RETURN 'contains half of a surrogate pair';
        END IF;
    END IF;
    IF written ~ '[0-9]{200}|[eE][+]?[0-9]{3}' THEN  -- shorter numbers are in range
        written := regexp_replace(written, '"([^"\\]|\\.)*"', '', 'g');
        FOR piece IN SELECT m[1] FROM regexp_matches(written, '(-?[0-9][0-9.eE+-]*)', 'g') AS m LOOP
            IF piece ~ '^-?[0-9]+$' THEN
                IF length(piece) > 4300 THEN
                    RETURN 'contains an integer of more than 4300 characters';
                END IF;
            ELSIF piece ~ '[0-9]{200}|[eE][+]?[0-9]{3}' THEN
                BEGIN
                    PERFORM piece::double precision;
                EXCEPTION WHEN numeric_value_out_of_range THEN
                    RETURN 'contains a number beyond the range of a float';
                END;
            END IF;
        END LOOP;
    END IF;
    FOR level IN 1..64 LOOP
        SELECT pair.key INTO piece
        FROM unnest(parts) WITH ORDINALITY AS o (part, n)
        CROSS JOIN LATERAL json_each(CASE json_typeof(o.part) WHEN 'object' THEN o.part ELSE '{}' END) AS pair
        GROUP BY o.n, pair.key HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RETURN format('has the key %L twice in one object', left(piece, 100));
        END IF;
        IF length(written) - length(translate(written, '[{', '')) <= level THEN
            RETURN NULL;  -- there are no more brackets than levels were seen
        END IF;
        SELECT array_agg(below.part) INTO parts FROM (
            SELECT pair.value FROM unnest(parts) AS o (part)
            CROSS JOIN LATERAL json_each(CASE json_typeof(o.part) WHEN 'object' THEN o.part ELSE '{}' END) AS pair
            UNION ALL
            SELECT item.value FROM unnest(parts) AS o (part)
            CROSS JOIN LATERAL json_array_elements(
                CASE json_typeof(o.part) WHEN 'array' THEN o.part ELSE '[]' END
            ) AS item
        ) AS below (part)
        WHERE json_typeof(below.part) IN ('object', 'array');
        IF parts IS NULL THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN 'is nested deeper than 64 levels';
END
$$;

-- The function refuses payloads that drafts refuse, and ids that only Stoker derives (`job.check_id`): they can be foreseen, and who takes one first
-- would keep a schedule from its job. It keeps its owner and the rights to call it.
CREATE OR REPLACE FUNCTION stoker.enqueue(
    kind text,
    payload json DEFAULT '{}',
    queue text DEFAULT 'default',
    delay interval DEFAULT '0',
    priority integer DEFAULT 0,
    attempts integer DEFAULT 5,
    unique_key text DEFAULT NULL,
    unique_scope text DEFAULT 'kind',
    tenant text DEFAULT NULL,
    id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS
$$
#variable_conflict use_column
DECLARE
    job uuid := coalesce(enqueue.id, stoker.mint());
    moment bigint := stoker.clock();
    wait bigint := (extract(epoch FROM enqueue.delay) * 1000000)::bigint;
    held text := CASE unique_scope WHEN 'global' THEN '/' ELSE enqueue.kind || '/' END || unique_key;
    holder uuid;
    gone record;
BEGIN
    IF enqueue.kind IS NULL OR enqueue.kind !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' THEN
        RAISE EXCEPTION 'kind: must be 1-128 of letters, digits, _ . : -; got %. Nothing was stored.', enqueue.kind
            USING ERRCODE = '22023';
    ELSIF enqueue.queue IS NULL OR enqueue.queue !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' THEN
        RAISE EXCEPTION 'queue: must be 1-128 of letters, digits, _ . : -; got %. Nothing was stored.', enqueue.queue
            USING ERRCODE = '22023';
    ELSIF enqueue.payload IS NULL OR octet_length(enqueue.payload::text) > 1048576 THEN
        RAISE EXCEPTION 'payload: must be JSON of at most 1048576 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF stoker.json_fault(enqueue.payload) IS NOT NULL THEN
        RAISE EXCEPTION 'payload: %. Nothing was stored.', stoker.json_fault(enqueue.payload) USING ERRCODE = '22023';
    ELSIF coalesce(enqueue.priority NOT BETWEEN -1000 AND 1000, true) THEN
        RAISE EXCEPTION 'priority: must be between -1000 and 1000. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF coalesce(enqueue.attempts NOT BETWEEN 1 AND 1000000, true) THEN
        RAISE EXCEPTION 'attempts: must be at least 1. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF coalesce(wait NOT BETWEEN 0 AND 316224000000000, true) THEN
        RAISE EXCEPTION 'delay: must be between zero and ten years. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF unique_scope NOT IN ('kind', 'global') OR octet_length(unique_key) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'unique_key: must be 1-512 bytes, its scope kind or global. Nothing was stored.'
            USING ERRCODE = '22023';
    ELSIF octet_length(enqueue.tenant) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'tenant: must be 1-512 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF get_byte(uuid_send(enqueue.id), 6) >> 4 = 8 THEN
        RAISE EXCEPTION 'id: is a UUID of version 8, which Stoker keeps for jobs of schedules; got %. Nothing was stored.',
            enqueue.id USING ERRCODE = '22023';
    END IF;
    IF EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = job) THEN
        RETURN job;
    END IF;
    WHILE held IS NOT NULL LOOP
        INSERT INTO stoker.dedupe (slot, id, firm) VALUES (held, job, false) ON CONFLICT (slot) DO NOTHING;
        EXIT WHEN FOUND;
        SELECT d.id INTO holder FROM stoker.dedupe AS d
        WHERE d.slot = held
            AND (d.firm OR NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = d.id AND r.status = 2));
        IF FOUND THEN
            RETURN holder;
        END IF;
        -- A holder that waits for a retry gives way; one that is claimed at this moment does not, and is met again.
        DELETE FROM stoker.ready AS r USING stoker.dedupe AS d
        WHERE d.slot = held AND r.id = d.id AND r.status = 2
        RETURNING r.* INTO gone;
        IF FOUND THEN
            UPDATE stoker.dedupe AS d SET id = job, firm = false WHERE d.slot = held;
            INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
            SELECT
                gone.id, moment,
                moment + coalesce((SELECT q.keep_dead FROM stoker.queue AS q WHERE q.name = gone.queue), 2592000000000),
                gone.token, (SELECT p.started FROM stoker.past AS p WHERE p.id = gone.id), gone.attempts, 4,
                gone.settled, false, gone.queue;
            INSERT INTO stoker.failure (id, at, error)
            VALUES (gone.id, moment, 'superseded by a newer job with the same unique key');
            INSERT INTO stoker.delta (queue, kind, retrying, dead)
            SELECT gone.queue, j.kind, -1, 1 FROM stoker.job AS j WHERE j.id = gone.id;
            EXIT;
        END IF;
    END LOOP;
    INSERT INTO stoker.job (id, created, due, budget, priority, utraits, queue, kind, payload, ukey, tenant)
    VALUES (
        job, moment, moment + wait, enqueue.attempts, enqueue.priority,
        CASE WHEN held IS NOT NULL THEN CASE unique_scope WHEN 'global' THEN 6 ELSE 0 END END,
        enqueue.queue, enqueue.kind, enqueue.payload::text, unique_key, enqueue.tenant
    );
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    VALUES (moment + wait, 0, job, 0, enqueue.priority, 0, -1, false, enqueue.queue);
    INSERT INTO stoker.delta (queue, kind, pending, enqueued) VALUES (enqueue.queue, enqueue.kind, 1, 1);
    RETURN job;
END
$$;
