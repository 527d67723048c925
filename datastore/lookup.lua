-- The entry of each context, in one call; false where there is none.
--
-- KEYS[i]  bucket (keys.py)     ARGV[i]  field of the context in that bucket
local entries = {}
for i = 1, #KEYS do
    local entry = redis.pcall('HGET', KEYS[i], ARGV[i])
    entries[i] = type(entry) == 'string' and entry
end
return entries
