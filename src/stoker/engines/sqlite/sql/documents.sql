SELECT document FROM stoker_documents WHERE sort = ?1
