DELETE FROM stoker_messages WHERE place > ?1 AND place <= ?2
