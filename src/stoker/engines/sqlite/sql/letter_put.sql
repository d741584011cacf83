INSERT OR REPLACE INTO stoker_letters (
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
