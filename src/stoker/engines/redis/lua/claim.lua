-- with: _packed_ids, _waiting, _groups, ?_subqueues, _steps, _aside, _take, ?_subqueue_claim, _claim
local out = claim(2)
write_counts()
if #out > 0 then tick() end
return reply({int(now), out})
