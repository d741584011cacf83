INSERT INTO stoker_dedupe (slot, seq, weak) VALUES (?1, ?2, ?3) ON CONFLICT (slot) DO UPDATE SET seq = excluded.seq, weak = excluded.weak
