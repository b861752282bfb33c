import { mcp } from "@llamaindex/tools";
const server = mcp({ url: process.argv[2], useSSETransport: false });
const [add] = await server.tools();
for (const item of ["bread", "milk", "tea"]) console.log((await add.call({ item })).content?.[0]?.text);
await server.cleanup();
process.exit(0);
