// node features.mjs CLIENT URL: tries each feature that a client has, and prints those that work.
const [name, url] = process.argv.slice(2);
const text = (result) => result.content?.[0]?.text ?? result.result ?? result[0]?.text ?? "";
const answer = () => ({ action: "accept", content: { name: "Ada", username: "Ada", email: "ada@example.com" } });

/** What a feature needs of a client; a client without one leaves it out. */
const clients = {
  async ts() {
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} };
    const client = new Client({ name: "features", version: "1" }, { versionNegotiation: { mode: "auto" }, capabilities });
    client.setRequestHandler("elicitation/create", answer);
    client.setRequestHandler("roots/list", () => ({ roots: [{ uri: "file:///home" }] }));
    const content = { type: "text", text: "Paris" };
    client.setRequestHandler("sampling/createMessage", () => ({ role: "assistant", model: "a model", content }));
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return {
      call: (tool, { signal } = {}) => client.callTool({ name: tool, arguments: { prompt: "?" } }, { signal }),
      read: async () => (await client.readResource({ uri: (await client.listResources()).resources[0].uri })).contents,
      prompt: async () => (await client.getPrompt({ name: "test_simple_prompt" })).messages,
      elicits: true, samples: true, cancels: true, resumes: true, roots: true,
      listen: async (seen) => {
        client.setNotificationHandler("notifications/tools/list_changed", seen);
        await client.listen({ toolsListChanged: true }).catch(() => null);  // the modern era's way
      },
      progress: (seen) => client.callTool({ name: "test_tool_with_progress", arguments: {} }, { onprogress: seen }),
    };
  },
  async ai() {
    const { createMCPClient, ElicitationRequestSchema } = await import("@ai-sdk/mcp");
    const client = await createMCPClient({ transport: { type: "http", url }, capabilities: { elicitation: {} } });
    client.onElicitationRequest(ElicitationRequestSchema, answer);
    const tools = await client.tools();
    return {
      call: (tool, { signal } = {}) => tools[tool].execute({}, { toolCallId: tool, messages: [], abortSignal: signal }),
      read: async () => (await client.readResource({ uri: (await client.listResources()).resources[0].uri })).contents,
      prompt: async () => (await client.experimental_getPrompt({ name: "test_simple_prompt" })).messages,
      elicits: true, cancels: true,
    };
  },
  async mastra() {
    const { MCPClient } = await import("@mastra/mcp");
    const shop = { url: new URL(url), enableProgressTracking: true, inputRequests: async () => answer() };
    const client = new MCPClient({ servers: { shop } });
    const tools = await client.listTools();
    const call = (tool, { signal } = {}) => tools[`shop_${tool}`].execute({}, { abortSignal: signal });
    return {
      call, elicits: true, cancels: true,
      read: async () => (await client.resources.read("shop", (await client.resources.list()).shop[0].uri)).contents,
      prompt: async () => (await client.prompts.get({ serverName: "shop", name: "test_simple_prompt" })).messages,
      progress: async (seen) => { await client.progress.onUpdate("shop", seen); await call("test_tool_with_progress"); },
    };
  },
  async agents() {
    const { MCPServerStreamableHttp } = await import("@openai/agents");
    const server = new MCPServerStreamableHttp({ url });
    await server.connect();
    return {
      call: (tool) => server.callTool(tool, {}),
      read: async () => (await server.readResource((await server.listResources()).resources[0].uri)).contents,
    };
  },
};

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const client = await clients[name]();
const { call } = client;
/** In either era's way: by a request of the server's, or by a result that asks. */
const asks = async (...tools) => {
  for (const tool of tools) {
    try { if (/Ada|Paris/.test(JSON.stringify(await call(tool)))) return true; } catch { /* the other way */ }
  }
  return false;
};
const features = {
  tools: async () => text(await call("test_simple_text")).length > 0,
  resources: client.read && (async () => (await client.read()).length > 0),
  prompts: client.prompt && (async () => (await client.prompt()).length > 0),
  elicitation: client.elicits && (() => asks("test_elicitation", "test_input_required_result_elicitation")),
  "multi-round-trip tools": client.elicits && (async () => {
    return /Ada/.test(JSON.stringify(await call("test_input_required_result_multi_round")));
  }),
  roots: client.roots && (async () => {
    for (const tool of ["roots", "test_input_required_result_list_roots"]) {
      try { if (/file:...home/.test(JSON.stringify(await call(tool)))) return true; } catch { /* the other way */ }
    }
    return false;
  }),
  listening: client.listen && (async () => {
    let seen = 0;
    await client.listen(() => (seen += 1));
    for (const tool of ["test_trigger_tool_change", "change"]) await call(tool).catch(() => null);
    await pause(500);
    return seen > 0;
  }),
  sampling: client.samples && (() => asks("test_sampling", "test_input_required_result_sampling")),
  progress: client.progress && (async () => { let seen = 0; await client.progress(() => (seen += 1)); return seen > 0; }),
  cancellation: client.cancels && (async () => {
    const control = new AbortController();
    setTimeout(() => control.abort(), 300);
    await call("sleep", { signal: control.signal }).catch(() => null);
    await pause(500);
    return text(await call("cancelled")) === "1";
  }),
  resumption: client.resumes && (async () => text(await call("test_reconnection")) === "after the break"),
};
for (const [feature, works] of Object.entries(features).filter(([, works]) => works)) {
  const tried = Promise.resolve().then(works).catch(() => false);
  console.log(`${feature}:`, await Promise.race([tried, pause(8000).then(() => false)]));
}
process.exit(0);
