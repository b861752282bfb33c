import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
const proxy = new URL("node_modules/mcp-remote/dist/proxy.js", import.meta.url).pathname;
const client = new Client({ name: "host", version: "1" });
await client.connect(new StdioClientTransport({ command: process.execPath, args: [proxy, process.argv[2]], env: process.env }));
for (const item of ["bread", "milk", "tea"]) {
  const result = await client.callTool({ name: "add", arguments: { item } });
  console.log(result.content[0].text);
}
await client.close();
