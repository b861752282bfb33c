// The official TypeScript clients, unchanged: all do what they are told at once, step by step.
//
// Arguments: a JSON array of clients, the server's URL, a JSON array of steps such as ["call", "whoami", {}], and where
// a client is not unchanged, the module whose `withSessions` wraps its transport.
// It prints a JSON array of what each saw. An exchange is [method, status, sent, named], where the last two say which
// session id was sent and which was named in the answer: null or a number, the same for the same id. The ids themselves
// are credentials and are never printed.

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

const [, clients, url, steps, wrapper] = process.argv;
const { withSessions } = wrapper ? await import(wrapper) : { withSessions: (transport) => transport };

console.debug = console.info = console.log = console.error; // what the clients themselves have to say

async function visit(which) {
  const { load, options } = CLIENTS[which];
  const { Client, StreamableHTTPClientTransport } = await load();
  const ids = [], underWay = [], exchanges = [], troubles = [], results = [];
  let client, transport;

  function number(headers) {
    const id = headers.get("mcp-session-id");
    if (id !== null && !ids.includes(id)) ids.push(id);
    return id === null ? null : ids.indexOf(id);
  }

  function watched(input, init = {}) {
    const exchange = fetch(input, init).then((response) => {
      const sent = number(new Headers(init.headers));
      exchanges.push([init.method ?? "GET", response.status, sent, number(response.headers)]);
      return response;
    });
    underWay.push(exchange);
    return exchange;
  }

  async function connect(sessionId) {
    transport = withSessions(new StreamableHTTPClientTransport(new URL(url), { fetch: watched, sessionId }));
    client = new Client({ name: "steps", version: "1" }, options);
    client.onerror = (error) => troubles.push(error.message);
    await client.connect(transport);
  }

  async function leave() {
    client.onerror = () => {}; // that a stream ends here is no trouble
    await client.close();
  }

  // As after a restart of the client's program: it kept the id, and shakes no hands again.
  async function again(sessionId) {
    await leave();
    await connect(sessionId);
    return true;
  }

  const STEPS = {
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

  await connect();
  for (const [step, ...args] of JSON.parse(steps)) {
    try {
      results.push(await STEPS[step](...args));
    } catch (error) {
      results.push(`failed: ${error.message}`);
    }
  }
  await Promise.allSettled(underWay);
  await leave();
  return { results, exchanges, troubles };
}

process.stdout.write(JSON.stringify(await Promise.all(JSON.parse(clients).map(visit))));
