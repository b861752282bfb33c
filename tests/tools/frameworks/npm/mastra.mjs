import { MCPClient } from "@mastra/mcp";
const client = new MCPClient({ servers: { shop: { url: new URL(process.argv[2]) } } });
const { shop_add: add } = await client.listTools();
for (const item of ["bread", "milk", "tea"]) {
  const result = await add.execute({ item }, {});
  console.log(result.result);
}
await client.disconnect();
