-- model.groups.known_members, before the group's total is written.
UPDATE stoker.job_group SET members = CASE
    WHEN total > 0 AND cardinality(members) = 0 OR cardinality(members) + cardinality($2::uuid[]) > $3::int THEN '{}'
    ELSE members || $2::uuid[]
END
WHERE id = $1::uuid
