// The official TypeScript clients, unchanged: each does what it is told, step by step, and prints what it saw.
//
// Arguments: which client, the server's URL, a JSON array of steps such as ["call", "whoami", {}], and where a client
// is not unchanged, the module whose `withSessions` wraps its transport.
// Every line is a JSON object: one for each step, and one for each HTTP exchange with {http, status, sent,
// named}, where the last two say which session id was sent and which was named in the answer: null or a number,
// the same for the same id. The ids themselves are credentials and are never printed.

const old = async () => ({
  ...(await import("@modelcontextprotocol/sdk/client/index.js")),
  ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
});
const current = () => import("@modelcontextprotocol/client");

const CLIENTS = {
  "typescript 1": { load: old, options: {} },
  "typescript 2": { load: current, options: {} },
  "typescript 2 modern": { load: current, options: { versionNegotiation: { mode: "auto" } } },
};

const [, which, url, steps, wrapper] = process.argv;
const { load, options } = CLIENTS[which];
const { Client, StreamableHTTPClientTransport } = await load();

const { withSessions } = wrapper ? await import(wrapper) : { withSessions: (transport) => transport };

const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");
console.debug = console.info = console.log = console.error; // what the clients themselves have to say

const ids = [];
function number(headers) {
  const id = headers.get("mcp-session-id");
  if (id !== null && !ids.includes(id)) ids.push(id);
  return id === null ? null : ids.indexOf(id);
}

const underWay = [];
function watched(input, init = {}) {
  const exchange = fetch(input, init).then((response) => {
    const sent = number(new Headers(init.headers));
    print({ http: init.method ?? "GET", status: response.status, sent, named: number(response.headers) });
    return response;
  });
  underWay.push(exchange);
  return exchange;
}

let client, transport;
async function connect(sessionId) {
  transport = withSessions(new StreamableHTTPClientTransport(new URL(url), { fetch: watched, sessionId }));
  client = new Client({ name: "steps", version: "1" }, options);
  client.onerror = (error) => print({ trouble: error.message });
  await client.connect(transport);
}

// As after a restart of the client's program: it kept the id, and shakes no hands again.
async function again(sessionId) {
  await leave();
  await connect(sessionId);
  return true;
}

async function leave() {
  client.onerror = () => {}; // that a stream ends here is no trouble
  await client.close();
}

const STEPS = {
  connect: async () => {
    await connect();
    return client.getServerVersion().name;
  },
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: async (name, args = {}) => (await client.callTool({ name, arguments: args })).content[0].text,
  together: (name) => Promise.all([STEPS.call(name), STEPS.call(name), STEPS.call(name)]),
  resume: () => again(transport.sessionId),
  // The client forgets an id that it has ended. A second one that still has it shows what the server says then.
  end: async () => {
    const { sessionId } = transport;
    await transport.terminateSession();
    return again(sessionId);
  },
};

for (const [step, ...args] of JSON.parse(steps)) {
  try {
    print({ step, result: await STEPS[step](...args) });
  } catch (error) {
    print({ step, error: error.message });
  }
}
await Promise.allSettled(underWay);
await leave();
