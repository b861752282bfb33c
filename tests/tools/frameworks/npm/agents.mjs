import { MCPServerStreamableHttp } from "@openai/agents";
const server = new MCPServerStreamableHttp({ url: process.argv[2] });
await server.connect();
for (const item of ["bread", "milk", "tea"]) {
  const content = await server.callTool("add", { item });
  console.log(content[0].text);
}
await server.close();
