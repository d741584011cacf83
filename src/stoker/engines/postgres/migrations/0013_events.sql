-- Events are stored in blocks, packed by model.event_blocks: about a tenth of the cost of a row for each event. Events
-- that were stored before are dropped: no release had the other table.

DROP INDEX stoker.event_at;
DROP INDEX stoker.event_job;
DROP TABLE stoker.event;

CREATE TABLE stoker.event (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first bigint NOT NULL,
    last bigint NOT NULL,
    low uuid NOT NULL,
    high uuid NOT NULL,
    count integer NOT NULL,
    body bytea NOT NULL
);
-- Ids are random at their ends: trying to compress them is wasted, and a search would have to undo it.
ALTER TABLE stoker.event ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX event_first ON stoker.event (first, n);

-- Jobs that were removed and may have events, as model.event_blocks.Removal: in blocks up to `block`, and whenever they
-- come up to `at`. A removal goes when no such block is left.
CREATE TABLE stoker.removed (
    job uuid PRIMARY KEY,
    block bigint NOT NULL,
    at bigint NOT NULL
);
CREATE INDEX removed_block ON stoker.removed (block);
