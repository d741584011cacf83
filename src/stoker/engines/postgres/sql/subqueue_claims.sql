SELECT claims FROM stoker.subqueue_round WHERE queue = $1
