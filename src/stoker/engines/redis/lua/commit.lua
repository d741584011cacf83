-- with: _packed_ids, _waiting, _groups, _subqueues, _steps, _commit
-- Returns {now, 1, groups that closed} when all checks held and everything was written, {now, 0} when a check
-- failed.
if not checked(2) then return reply({int(now), 0}) end
written(after_checks(2))
steps.flush()
write_states()
tick()
return reply({counted_now(), 1, completed})
