import { MultiServerMCPClient } from "@langchain/mcp-adapters";
const client = new MultiServerMCPClient({ mcpServers: { shop: { transport: "http", url: process.argv[2] } } });
const [add] = await client.getTools();
for (const item of ["bread", "milk", "tea"]) {
  const result = await add.invoke({ item });
  console.log(result.text ?? result);
}
await client.close();
