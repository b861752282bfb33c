import { createMCPClient } from "@ai-sdk/mcp";
const client = await createMCPClient({ transport: { type: "http", url: process.argv[2] } });
const { add } = await client.tools();
for (const item of ["bread", "milk", "tea"]) {
  const result = await add.execute({ item }, { toolCallId: item, messages: [] });
  console.log(result.content[0].text);
}
await client.close();
