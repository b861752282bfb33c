import { createRuntime } from "mcporter";
const runtime = await createRuntime({ servers: [{ name: "shop", command: { kind: "http", url: new URL(process.argv[2]) } }] });
for (const item of ["bread", "milk", "tea"]) {
  const result = await runtime.callTool("shop", "add", { args: { item } });
  console.log(result.content[0].text);
}
await runtime.close();
process.exit(0);
