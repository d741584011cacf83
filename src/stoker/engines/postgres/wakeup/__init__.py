"""Wake-ups between processes over LISTEN/NOTIFY: `notifier` sends and waits, `listener` receives."""
