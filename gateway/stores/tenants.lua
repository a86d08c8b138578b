-- Changes of tenants and keys: all or none, against the version that they were made from.
--
-- KEYS 1 head    hash   store (drawn with the first change), version (number of changes), mark (of the last one)
--      2 tenants hash   id -> document
--      3 keys    hash   id -> document
--      4 audit   stream <version>-0 -> kind, id, tenant, who, at (ms), mark, before, after; feeds every gateway too
--      5 used    hash   key id -> when it was used last (s)
--      6 caps    string what the kvmanager enforces
-- ARGV 1 JSON: store, version, mark, fresh, who, caps (or null), changes of {kind, id, tenant, before, after},
--        where documents are JSON texts and '' is none

local head, tenants, keys, audit, used, caps = unpack(KEYS)
local asked = cjson.decode(ARGV[1])
local store = redis.call('HGET', head, 'store') or ''
local version = tonumber(redis.call('HGET', head, 'version') or '0')
local mark = redis.call('HGET', head, 'mark') or ''
if store ~= asked.store or version ~= asked.version or mark ~= asked.mark then
  return { 'stale' }
end
if store == '' then
  store = asked.fresh
  redis.call('HSET', head, 'store', store)
  -- What is left of an earlier store would be taken for this one's.
  redis.call('DEL', tenants, keys, audit, used, caps)
end
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for _, change in ipairs(asked.changes) do
  version = version + 1
  local documents = change.kind == 'tenant' and tenants or keys
  if change.after == '' then
    redis.call('HDEL', documents, change.id)
    if change.kind == 'key' then
      redis.call('HDEL', used, change.id)
    end
  else
    redis.call('HSET', documents, change.id, change.after)
  end
  redis.call('XADD', audit, version .. '-0', 'kind', change.kind, 'id', change.id, 'tenant', change.tenant,
    'who', asked.who, 'at', string.format('%.0f', at), 'mark', asked.fresh, 'before', change.before, 'after', change.after)
end
redis.call('HSET', head, 'version', string.format('%.0f', version), 'mark', asked.fresh)
if asked.caps ~= cjson.null then
  redis.call('SET', caps, asked.caps)
end
return { 'ok', store, version, at }
