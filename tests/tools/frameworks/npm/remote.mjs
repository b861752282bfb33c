import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
const args = ["node_modules/mcp-remote/dist/proxy.js", process.argv[2]];
const client = new Client({ name: "host", version: "1" });
await client.connect(new StdioClientTransport({ command: process.execPath, args, env: process.env }));
for (const item of ["bread", "milk", "tea"]) {
  const result = await client.callTool({ name: "add", arguments: { item } });
  console.log(result.content[0].text);
}
await client.close();
