-- Fair queues, and numbers of limits that an operator set (JSON).
ALTER TABLE stoker.queue ADD COLUMN fair boolean NOT NULL DEFAULT false;
ALTER TABLE stoker.queue ADD COLUMN limits text;
