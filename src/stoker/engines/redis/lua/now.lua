return int(now)
