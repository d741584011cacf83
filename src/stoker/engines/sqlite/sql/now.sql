SELECT high FROM stoker_clock
