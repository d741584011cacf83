"""What the SQL engines share: statements in files, numbered migrations, users' transaction handles."""
