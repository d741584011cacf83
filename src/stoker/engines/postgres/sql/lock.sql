SELECT owner, until FROM stoker.lock WHERE name = $1 FOR UPDATE
