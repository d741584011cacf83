-- Who changed what, as JSON of model.audit. Only `expire` removes entries.

CREATE TABLE stoker.audit (
    at bigint NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    entry text NOT NULL,
    PRIMARY KEY (at, n)
);
