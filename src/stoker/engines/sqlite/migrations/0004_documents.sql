-- Small documents of operators, as JSON: access tokens and operations.

CREATE TABLE stoker_documents (
    sort TEXT NOT NULL,
    name TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (sort, name)
) WITHOUT ROWID;
