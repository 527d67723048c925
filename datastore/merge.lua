-- Merge entries into buckets, each bucket whole or not at all. codec.py describes an entry and gives the rule.
--
-- KEYS[i]  bucket (keys.py): a hash from context to entry
-- ARGV[i]  for KEYS[i]: for each entry its field (4 bytes), its length (1 byte), and the entry
-- ARGV[#KEYS + 1], ARGV[#KEYS + 2], ARGV[#KEYS + 3]
--          bytes of an entry at most, count of a record at most, contexts of a bucket at most
-- Returns how many contexts full buckets dropped.
local byte, char, sub, concat = string.byte, string.char, string.sub, table.concat
local max_entry, max_count, max_fields = tonumber(ARGV[#KEYS + 1]), tonumber(ARGV[#KEYS + 2]), tonumber(ARGV[#KEYS + 3])

-- Appends the records of an entry; false, and nothing appended, if no entry of this schema.
local function unpack_entry(entry, seen, tokens)
    local at, size, before = 1, #entry, #seen
    while at + 1 < size do
        local count, length = byte(entry, at, at + 1)
        if count == 0 or length == 0 or at + 1 + length > size then break end
        seen[#seen + 1], tokens[#tokens + 1] = count, sub(entry, at + 2, at + 1 + length)
        at = at + 2 + length
    end
    if at == size + 1 then return true end
    for i = #seen, before + 1, -1 do seen[i], tokens[i] = nil, nil end
    return false
end

local function begins(longer, shorter)
    return sub(longer, 1, #shorter) == shorter
end

local function merged(old, new)
    local seen, tokens, fresh = {}, {}, {}
    local fresh_seen, fresh_tokens = {}, {}
    unpack_entry(old, seen, tokens)
    unpack_entry(new, fresh_seen, fresh_tokens)
    for i = 1, #fresh_seen do
        local one, place = fresh_tokens[i], #seen + 1
        for j = 1, #seen do
            if begins(tokens[j], one) or begins(one, tokens[j]) then place = j break end
        end
        if not tokens[place] or #tokens[place] < #one then tokens[place] = one end
        seen[place] = math.min((seen[place] or 0) + fresh_seen[i], max_count)
        fresh[place] = true
    end
    local size = 0
    for i = 1, #seen do size = size + 2 + #tokens[i] end
    if size > max_entry then
        for i = 1, #seen do
            if not fresh[i] then seen[i] = seen[i] - 1 end
        end
    end
    local order = {}
    for i = 1, #seen do  -- by insertion: it is stable, and there are few
        local j = i
        while j > 1 do
            local other = order[j - 1]
            if seen[other] > seen[i] or (seen[other] == seen[i] and (fresh[other] or not fresh[i])) then break end
            order[j] = other
            j = j - 1
        end
        order[j] = i
    end
    local room, certain = max_entry, nil
    for i = 1, #order do
        if fresh[order[i]] then
            certain = order[i]
            room = room - 2 - #tokens[certain]
            break
        end
    end
    local out = {}
    for i = 1, #order do
        local one = order[i]
        local needs = 2 + #tokens[one]
        if one == certain or (seen[one] > 0 and needs <= room) then
            if one ~= certain then room = room - needs end
            out[#out + 1] = char(seen[one], #tokens[one])
            out[#out + 1] = tokens[one]
        end
    end
    return concat(out)
end

-- Drops contexts until three quarters are left, oldest first. One seen more than once is halved and is the newest again.
local function shrink(key, held)
    local all = redis.call('HGETALL', key)
    local excess, drop, spared = held - math.floor(max_fields * 3 / 4), {}, {}
    for i = 1, #all, 2 do
        if #drop == excess then break end
        local top = byte(all[i + 1], 1)
        if top and top > 1 then
            spared[#spared + 1] = all[i]
            spared[#spared + 1] = char(math.floor(top / 2)) .. sub(all[i + 1], 2)
        else
            drop[#drop + 1] = all[i]
        end
    end
    local kept = 2 * math.max(0, #spared / 2 + #drop - excess)  -- none was seen once: the oldest go after all
    for i = 1, #spared - kept, 2 do drop[#drop + 1] = spared[i] end
    redis.call('HDEL', key, unpack(drop))
    for i = #spared - kept + 1, #spared, 2 do
        redis.call('HDEL', key, spared[i])
        redis.call('HSET', key, spared[i], spared[i + 1])
    end
    return #drop
end

-- Merge some entries. Never more than `max_fields` at any moment: the compact encoding does not come back.
local function write(key, fields, writes)
    local olds = redis.pcall('HMGET', key, unpack(fields))
    if olds.err then  -- something else lies under this name
        redis.call('DEL', key)
        olds = {}
    end
    local fresh, dropped = 0, 0
    for i = 1, #fields do
        if olds[i] then
            writes[2 * i] = merged(olds[i], writes[2 * i])
        else
            fresh = fresh + 1
        end
    end
    local held = redis.call('HLEN', key)
    if held + fresh > max_fields then dropped = shrink(key, held) end
    redis.call('HSET', key, unpack(writes))
    return dropped
end

local dropped = 0
local most = math.floor(max_fields / 4)  -- what shrink() makes room for
for i = 1, #KEYS do
    local part, at = ARGV[i], 1
    while at <= #part do
        local fields, writes = {}, {}
        while at <= #part and #fields < most do
            local length = byte(part, at + 4)
            fields[#fields + 1] = sub(part, at, at + 3)
            writes[#writes + 1] = fields[#fields]
            writes[#writes + 1] = sub(part, at + 5, at + 4 + length)
            at = at + 5 + length
        end
        dropped = dropped + write(KEYS[i], fields, writes)
    end
end
return dropped
