import { createMcpClient } from "@genkit-ai/mcp";
import { genkit } from "genkit";
const ai = genkit({});
const client = createMcpClient({ name: "shop", mcpServer: { url: process.argv[2] } });
await client.ready();
const [add] = await client.getActiveTools(ai);
for (const item of ["bread", "milk", "tea"]) {
  const result = await add({ item });
  console.log(result.content?.[0]?.text ?? result.result ?? result);
}
await client.disable();
process.exit(0);
