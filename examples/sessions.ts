// Sessions by the draft for any client of the official TypeScript SDK, 1.x or 2.x:
//
//     await client.connect(withSessions(new StreamableHTTPClientTransport(url)));
//
// The first request creates a session, later ones use it, and `client.close()` deletes it. If the server loses the
// session, one call fails with -32043 and the next begins a new session. Servers without sessions work as before.

const PREFIX = "io.modelcontextprotocol/", SESSION = `${PREFIX}session`, CAPABILITIES = `${PREFIX}clientCapabilities`;
const [METHOD_NOT_FOUND, SESSION_NOT_FOUND] = [-32601, -32043];
type Transport = { send(message: any, options?: any): Promise<void>; close(): Promise<void>; onmessage?: any };

export function withSessions<T extends Transport>(transport: T): T {
  const [send, close] = [transport.send.bind(transport), transport.close.bind(transport)];
  const asked = new Map<unknown, (answer: any) => void>(); // our own requests
  let session: any, creating: Promise<void> | undefined, envelope = {}, listener: any;

  async function ask(method: string, meta = {}) {
    const id = `sessions-${crypto.randomUUID()}`;
    const answered = new Promise<any>((resolve) => asked.set(id, resolve));
    await send({ jsonrpc: "2.0", id, method, params: { _meta: { ...envelope, ...meta } } });
    const { result, error } = await answered;
    if (error) throw Object.assign(new Error(error.message), error);
    return result;
  }

  const create = () => ask("sessions/create").then((result) => { session = result.session; }, (error) => {
    if (error.code === METHOD_NOT_FOUND) return; // the server has no sessions
    creating = undefined;
    throw error;
  });

  async function outgoing(message: any) {
    if (message.id === undefined || message.method === undefined) return message; // a notification, or an answer
    const params = { ...message.params }, meta = { ...params._meta };
    const declare = (to: any) => ({ ...to, experimental: { ...to?.experimental, sessions: {} } });
    if (message.method === "initialize") params.capabilities = declare(params.capabilities);
    if (meta[CAPABILITIES]) meta[CAPABILITIES] = declare(meta[CAPABILITIES]);
    envelope = Object.fromEntries(Object.entries(meta).filter(([key]) => key.startsWith(PREFIX) && key !== SESSION));
    if (!["initialize", "server/discover", "ping"].includes(message.method) && !meta[SESSION]) {
      if (!session) await (creating ??= create());
      if (session) meta[SESSION] = { sessionId: session.sessionId, state: session.state };
    }
    return { ...message, params: { ...params, _meta: meta } };
  }

  function incoming(message: any, extra: any) {
    const answer = message.method === undefined ? asked.get(message.id) : undefined;
    if (answer) return answer(message);
    const [echoed, { code, data }] = [message.result?._meta?.[SESSION], message.error ?? {}];
    if (session && echoed?.sessionId === session.sessionId) session = { ...session, ...echoed };
    if (session && code === SESSION_NOT_FOUND && data?.sessionId === session.sessionId) session = creating = undefined;
    listener?.(message, extra);
  }

  async function leave() {
    if (session) await ask("sessions/delete", { [SESSION]: { sessionId: session.sessionId } }).catch(() => {});
    await close();
  }

  Object.defineProperty(transport, "onmessage", { get: () => listener && incoming, set: (to) => (listener = to) });
  return Object.assign(transport, { close: leave, send: async (m: any, o?: any) => send(await outgoing(m), o) });
}
