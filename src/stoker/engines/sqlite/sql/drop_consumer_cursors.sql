DELETE FROM stoker_cursors WHERE rid = ?1
