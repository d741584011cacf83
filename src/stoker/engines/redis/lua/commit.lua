-- with: _lots, _line, _commit
-- Answers {now, 1} when all checks held and everything was written, {now, 0} when somebody was faster.
if not checked(2) then return {int(now), 0} end
written(after_checks(2))
tick()
return {told(), 1}
