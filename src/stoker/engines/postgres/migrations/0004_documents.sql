-- Small documents of operators, as JSON: access tokens and operations.

CREATE TABLE stoker.document (
    sort text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    document text NOT NULL,
    PRIMARY KEY (sort, name)
) WITH (fillfactor = 50);
