UPDATE stoker_body SET
    qid = ?2,
    priority = ?3,
    due = ?4,
    kind = ?5,
    payload = ?6,
    budget = ?7,
    ukey = ?8,
    utraits = ?9,
    tenant = ?10,
    options = ?11
WHERE seq = ?1
