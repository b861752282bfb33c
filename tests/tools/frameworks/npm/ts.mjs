import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
const client = new Client({ name: "shop", version: "1" }, { versionNegotiation: { mode: "auto" } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
for (const item of ["bread", "milk", "tea"]) {
  const result = await client.callTool({ name: "add", arguments: { item } });
  console.log(result.content[0].text);
}
await client.close();
