"""The atomic steps of the Redis store on a session's data, as Lua scripts.

All begin with the same functions, and follow the rules of `redis_scripts`. Of the four keys of a shelf the first two
tell whether the session has ended, so that nothing is kept for one that has.
"""

from __future__ import annotations

from typing import Final

from .redis_scripts import Script

# A name's time lies in `times` under '=' and the name; under '#' the bytes of all names and values.
# What needs memory is written first: a full Redis refuses only a script that has not written yet.
_DATA: Final = """
local ended, session, data, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, ttl, kept, most, name = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local function gone() return redis.call('EXISTS', ended) == 1 or redis.call('HEXISTS', session, 'x') == 1 end
local function drop(what)
  local old = redis.call('HGET', data, what)
  if old then
    redis.call('HDEL', data, what)
    redis.call('HINCRBY', times, '#', -#what - #old)
  end
  redis.call('HDEL', times, '=' .. what)
end
local function live()
  local ends = redis.call('HGET', times, '=' .. name)
  if ends and not (now < tonumber(ends)) then return false, '' end
  return redis.call('HGET', data, name), ends or ''
end
local function total() return tonumber(redis.call('HGET', times, '#') or 0) end
local function make_room()
  local all = redis.call('HGETALL', times)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '=' and not (now < tonumber(all[i + 1])) then drop(string.sub(all[i], 2)) end
  end
end
local function taken()
  local old = redis.call('HGET', data, name)
  return old and #name + #old or 0
end
local function fits(size)
  if total() - taken() + size <= most then return true end
  make_room()
  return total() - taken() + size <= most
end
local function keep()
  if redis.call('EXISTS', session) == 1 then ttl = kept end
  redis.call('EXPIRE', data, ttl)
  redis.call('EXPIRE', times, ttl)
end
local function put(value, ends)
  local size = #name + #value
  if not fits(size) then return {'large'} end
  local more = size - taken()
  redis.call('HSET', data, name, value)
  redis.call('HINCRBY', times, '#', more)
  if ends ~= '' then redis.call('HSET', times, '=' .. name, ends) else redis.call('HDEL', times, '=' .. name) end
  keep()
  return {'done'}
end
"""

# All take the four keys of a shelf; now ttl ttl-while-recorded max-bytes name, and what is named above each.
READ: Final = Script(_DATA + "return (live())")

# -> {name value expires-or-nothing}...
ITEMS: Final = Script(
    _DATA
    + """
local found = {}
local all = redis.call('HGETALL', data)
for i = 1, #all, 2 do
  name = all[i]
  local value, ends = live()
  if value then
    for _, word in ipairs({name, value, ends}) do found[#found + 1] = word end
  end
end
return found
"""
)

# {name value expires-or-nothing}... -> done, large or gone
FILL: Final = Script(
    _DATA
    + """
if gone() then return {'gone'} end
for i = 6, #ARGV, 3 do
  name = ARGV[i]
  local done = put(ARGV[i + 1], ARGV[i + 2])
  if done[1] ~= 'done' then return done end
end
return {'done'}
"""
)

# value expires (each may be nothing) -> done, large or gone
WRITE: Final = Script(
    _DATA
    + """
if gone() then return {'gone'} end
if ARGV[6] ~= '' and (ARGV[7] == '' or now < tonumber(ARGV[7])) then return put(ARGV[6], ARGV[7]) end
drop(name)
return {'done'}
"""
)

# old new (each may be nothing) -> done, changed, large or gone
SWAP: Final = Script(
    _DATA
    + """
if gone() then return {'gone'} end
local value, ends = live()
if (value or '') ~= ARGV[6] then return {'changed'} end
if ARGV[7] ~= '' then return put(ARGV[7], ends) end
drop(name)
return {'done'}
"""
)

# by -> done and the sum (as text: Lua's numbers are doubles), not-integer, large or gone
ADD: Final = Script(
    _DATA
    + """
if gone() then return {'gone'} end
local old, ends = live()
if not old and taken() > 0 then drop(name) end
local sum = redis.pcall('HINCRBY', data, name, ARGV[6])
if type(sum) == 'table' then
  if string.find(sum.err, 'integer', 1, true) or string.find(sum.err, 'overflow', 1, true) then
    return {'not-integer'}
  end
  return sum
end
local new = redis.call('HGET', data, name)
local more = old and #new - #old or #name + #new
if total() + more > most then make_room() end
if total() + more > most then
  if old then redis.call('HSET', data, name, old) else redis.call('HDEL', data, name) end
  return {'large'}
end
redis.call('HINCRBY', times, '#', more)
keep()
return {'done', new}
"""
)
