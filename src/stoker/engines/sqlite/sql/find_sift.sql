SELECT qid, kind, tenant, created, ukey FROM stoker_body WHERE seq = ?1
