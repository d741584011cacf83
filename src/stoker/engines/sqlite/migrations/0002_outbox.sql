-- Streams: messages, the cursors of consumers, letters, parked keys and received ids. Times are integer microseconds,
-- ids of messages 16 bytes.
--
-- A partition has the number pid = sid * 64 + partition, a message the place pid << 40 | number: one tree holds the log
-- of every partition in its order. There is one writer at a time, so the next number of a partition is the highest one
-- plus one, and numbers follow commits.

CREATE TABLE stoker_streams (
    sid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    keep INTEGER NOT NULL
);

-- `swept`: the highest number that was deleted, from which numbers go on when a partition is empty.
CREATE TABLE stoker_partitions (
    pid INTEGER PRIMARY KEY,
    swept INTEGER NOT NULL
);

CREATE TABLE stoker_messages (
    place INTEGER PRIMARY KEY,
    created INTEGER NOT NULL,
    id BLOB NOT NULL,
    raw INTEGER NOT NULL CHECK (raw IN (0, 1)),
    key TEXT NOT NULL,
    type TEXT NOT NULL,
    headers TEXT,
    payload BLOB
);

CREATE TABLE stoker_consumers (
    rid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    name TEXT NOT NULL,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    UNIQUE (sid, name)
);

CREATE TABLE stoker_cursors (
    rid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    holder TEXT,
    token INTEGER NOT NULL,
    until INTEGER,
    due INTEGER NOT NULL,
    served INTEGER NOT NULL,
    size INTEGER,
    failures INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    PRIMARY KEY (rid, pid)
) WITHOUT ROWID;

-- Keys whose messages are set aside. `released`: their letters are to be delivered.
CREATE TABLE stoker_parked (
    rid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    key TEXT NOT NULL,
    since INTEGER NOT NULL,
    reason TEXT NOT NULL,
    released INTEGER NOT NULL CHECK (released IN (0, 1)),
    PRIMARY KEY (rid, pid, key)
) WITHOUT ROWID;

-- Full copies of messages that could not be delivered. The payload comes last: a list that skips a letter does not
-- read it.
CREATE TABLE stoker_letters (
    rid INTEGER NOT NULL,
    place INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    status TEXT NOT NULL,
    due INTEGER NOT NULL CHECK (due IN (0, 1)),
    attempts INTEGER NOT NULL,
    holder TEXT,
    token INTEGER NOT NULL,
    until INTEGER,
    ended INTEGER,
    id BLOB NOT NULL,
    created INTEGER NOT NULL,
    raw INTEGER NOT NULL,
    key TEXT NOT NULL,
    type TEXT NOT NULL,
    headers TEXT,
    reason TEXT NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (rid, place)
);
CREATE INDEX stoker_letters_failed ON stoker_letters (rid, failed DESC, place);
CREATE INDEX stoker_letters_due ON stoker_letters (rid, place) WHERE due = 1;
CREATE INDEX stoker_letters_parked ON stoker_letters (rid, key, place) WHERE status = 'parked';

-- Ids that an inbox has received.
CREATE TABLE stoker_received (
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (source, id)
) WITHOUT ROWID;
CREATE INDEX stoker_received_until ON stoker_received (until);
