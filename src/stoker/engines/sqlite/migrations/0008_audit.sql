-- Who changed what, as JSON of model.audit. Only `expire` removes entries.

CREATE TABLE stoker_audit (
    n INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    entry BLOB NOT NULL
);
CREATE INDEX stoker_audit_at ON stoker_audit (at);
