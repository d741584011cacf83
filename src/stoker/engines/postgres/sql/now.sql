SELECT stoker.clock()
