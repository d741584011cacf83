-- Events are stored in blocks, packed by model.event_blocks: about a tenth of the cost of a row for each event. Events
-- that were stored before are dropped: no release had the other table.

DROP TABLE stoker_events;

-- Numbers are never used again: a removal compares them.
CREATE TABLE stoker_events (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    low BLOB NOT NULL,
    high BLOB NOT NULL,
    count INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX stoker_events_first ON stoker_events (first);

-- Jobs that were removed and may have events, as model.event_blocks.Removal: in blocks up to `block`, and whenever they
-- come up to `at`. A removal goes when no such block is left.
CREATE TABLE stoker_removed (
    job BLOB NOT NULL PRIMARY KEY,
    block INTEGER NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX stoker_removed_block ON stoker_removed (block);
