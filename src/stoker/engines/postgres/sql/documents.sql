SELECT document FROM stoker.document WHERE sort = $1
