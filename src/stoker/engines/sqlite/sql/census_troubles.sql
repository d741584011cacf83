SELECT kind, error FROM stoker_troubles
