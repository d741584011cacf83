"""Background jobs and a transactional outbox in one library."""
