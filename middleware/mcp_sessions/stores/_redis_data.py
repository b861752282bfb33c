"""The changes of a session's data in Redis, as Lua scripts: each within the limits of the session and its principal."""

from __future__ import annotations

from typing import Final

from .._errors import DataError, DataGone, DataNotInteger, DataTooLarge
from ._base import VALUE_COST
from ._redis_scripts import COUNT_USAGE, KEEP, Script

# A change takes a list of names, each with a value and when it expires, or nothing. What needs memory is written first,
# since a full Redis refuses only a script that has not written yet.
_DATA: Final = (
    f"local VALUE_COST = {VALUE_COST}"
    + KEEP
    + COUNT_USAGE
    + """
local ended, session, usage, sizes = unpack(KEYS)
local ref, now, ttl, kept, max = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local is_counted, account, limit, name = ARGV[6] ~= '', ARGV[7], tonumber(ARGV[8]), ARGV[9]
if redis.call('EXISTS', ended) == 1 or redis.call('HEXISTS', session, 'x') == 1 then return {'gone'} end
if not is_counted then account, limit = redis.call('HGET', session, '$'), nil end

local function has_expired(moment) return moment and not (now < tonumber(moment)) end
local function live()
  local r = redis.call('HMGET', session, ':' .. name, '=' .. name)
  if has_expired(r[2]) then return '', '' end
  return r[1] or '', r[2] or ''
end
local function sizes_with(items)
  local r = redis.call('HMGET', session, '#', 'n')
  local bytes, count = tonumber(r[1] or 0), tonumber(r[2] or 0)
  local before = bytes + VALUE_COST * count
  for _, item in ipairs(items) do
    local old = redis.call('HGET', session, ':' .. item[1])
    if old then bytes, count = bytes - #item[1] - #old, count - 1 end
    if item[2] ~= '' then bytes, count = bytes + #item[1] + #item[2], count + 1 end
  end
  return bytes, count, before, bytes + VALUE_COST * count
end
local function sweep()
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', sizes, '-inf', now, 'LIMIT', 0, 100)) do
    uncount(usage, sizes, entry)
  end
end
local function count_again(before, after)
  uncount(usage, sizes, string.format('%s %d %s', ref, before, account))
  if after > 0 then
    local ends = now + redis.call('TTL', session)
    redis.call('HSET', session, '$', account)
    redis.call('ZADD', sizes, ends, string.format('%s %d %s', ref, after, account))
    add(usage, account, after)
    for _, key in ipairs({usage, sizes}) do keep(key, kept) end
  end
  sweep()
end
local function apply(items)
  local bytes, count, before, after = sizes_with(items)
  for _, item in ipairs(items) do
    local value, ends = ':' .. item[1], '=' .. item[1]
    if item[2] == '' then redis.call('HDEL', session, value, ends)
    else
      redis.call('HSET', session, value, item[2])
      if item[3] == '' then redis.call('HDEL', session, ends) else redis.call('HSET', session, ends, item[3]) end
    end
  end
  if count == 0 then redis.call('HDEL', session, '#', 'n', '$')
  else redis.call('HSET', session, '#', bytes, 'n', count) end
  keep(session, redis.call('HEXISTS', session, 'm') == 1 and kept or ttl)
  if account then count_again(before, after) end
end
local function excess(items)
  local bytes, _, before, after = sizes_with(items)
  if bytes > max then return 'large' end
  local all = limit and tonumber(redis.call('ZSCORE', usage, account) or 0)
  if limit and after > before and all + after - before > limit then return 'crowded', all, after - before end
end
local function make_room()
  local all, expired = redis.call('HGETALL', session), {}
  for i = 1, #all, 2 do
    local kind, name = string.sub(all[i], 1, 1), string.sub(all[i], 2)
    if kind == '=' and has_expired(all[i + 1]) then expired[#expired + 1] = {name, ''} end
  end
  apply(expired)
end
local function change(items)
  if excess(items) then make_room() end
  local why, all, more = excess(items)
  if why then return {why, all, more} end
  apply(items)
  return {'done'}
end
"""
)
REFUSED: Final[dict[bytes, tuple[type[DataError], str]]] = {
    b"gone": (DataGone, "the session has ended"),
    b"large": (DataTooLarge, "the session's data would exceed its limit"),
    b"not-integer": (DataNotInteger, "the value or the sum is not a 64-bit integer"),
}
"""By what a script returns, except for "crowded"."""

# Keys: ended session usage sizes. Arguments: ref now ttl ttl-while-recorded max-bytes is-counted account its-limit
# name, and what stands above each. -> done, gone, large, or crowded and the account's bytes and those to be added.

# {name value ends}...
WRITE: Final = Script(
    _DATA,
    """
local items = {}
for i = 10, #ARGV, 3 do
  local value, ends = ARGV[i + 1], ARGV[i + 2]
  if ends ~= '' and has_expired(ends) then value = '' end
  items[#items + 1] = {ARGV[i], value, ends}
end
return change(items)
""",
)

# old new -> also changed
COMPARE_AND_SWAP: Final = Script(
    _DATA,
    """
local value, ends = live()
if value ~= ARGV[10] then return {'changed'} end
return change({{name, ARGV[11], ends}})
""",
)

# by -> also not-integer; done is followed by the sum, as text, since Lua's numbers have no 64 bits
ADD: Final = Script(
    _DATA,
    """
local value, ends = live()
redis.call('HSET', session, '+', value == '' and '0' or value)
local sum = redis.pcall('HINCRBY', session, '+', ARGV[10])
local new = redis.call('HGET', session, '+')
redis.call('HDEL', session, '+')
if type(sum) == 'table' then return {'not-integer'} end
local result = change({{name, new, ends}})
if result[1] == 'done' then result[2] = new end
return result
""",
)
