import { createMCPClient } from "@ai-sdk/mcp";

let cookie;
async function keepingCookies(input, init = {}) {
  const headers = new Headers(init.headers);
  if (cookie) headers.set("cookie", cookie);
  const response = await fetch(input, { ...init, headers });
  for (const set of response.headers.getSetCookie()) cookie = set.split(";")[0];
  return response;
}

const url = process.argv[2];
const client = await createMCPClient({ transport: { type: "http", url, fetch: keepingCookies } });
const { add } = await client.tools();
for (const item of ["bread", "milk", "tea"]) {
  const result = await add.execute({ item }, { toolCallId: item, messages: [] });
  console.log(result.content[0].text);
}
await client.close();
